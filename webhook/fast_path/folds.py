"""What becomes of the pods of workloads, remembered by itself.

It follows from the pod, as for Pods, and a workload with other replicas or annotations mostly has the
template that it had before. What rules find is not remembered here: it may rest on all of the object.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from weakref import ref

import orjson

from policies.core.facts import Cluster
from policies.core.listing import Listing
from policies.core.pod_view import PodView
from policies.core.resources import Resource
from policies.core.target import PodTemplate
from webhook.admission.configuration import Config
from webhook.admission.context import Context
from webhook.admission.decision import Decision
from webhook.admission.mutation import fold_template
from webhook.fast_path.consulted import Consulted, current
from webhook.fast_path.sizes import LARGEST, SLOT, held, trimmed


class Folds:
    """What becomes of the pods of workloads."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes that all entries together may take, 0 to remember nothing."""
        self._limit = limit
        self._entries: dict[bytes, _Fold] = {}
        self._new: list[bytes] = []
        """Those whose size is not known yet."""
        self._config: Config | None = None
        self.bytes = 0
        """What the entries take, as measured."""
        self.hits = 0

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, template: PodTemplate, context: Context, cluster: Recorded) -> tuple[Decision, PodView]:
        """What becomes of the pods of a template, by a decision that sees this cluster."""
        if not self._limit:
            return fold_template(template, context)
        if context.config is not self._config:
            self._entries.clear()
            self._new.clear()
            self._config, self.bytes = context.config, 0
        try:
            key = orjson.dumps([context.namespace, template.pod])
        except orjson.JSONEncodeError:
            return fold_template(template, context)
        known = self._entries.pop(key, None)
        if known is not None and current(known.consulted, cluster):  # which notes them for this answer, too
            self._entries[key] = known
            self.hits += 1
            return known.answer(template)
        if known is not None:
            self.bytes -= known.size
        folded, view = fold_template(template, context)
        if not folded.crashes:
            # All that was consulted until now: values computed from it may have been used again here.
            self._remember(trimmed(key), _Fold.of(template, folded, view, cluster.consulted()))
        return folded, view

    def _remember(self, key: bytes, entry: _Fold) -> None:
        self._entries[key] = entry
        self._new.append(key)

    def measure(self) -> None:
        """Keep to the limit. Must be called once a review is answered: what its rules have read of a pod is
        kept with the pod, so that it has its size only then."""
        while self._new:
            key = self._new.pop()
            entry = self._entries.get(key)
            if entry is None:
                continue
            entry.size = SLOT + held(key, entry)
            if entry.size > self._limit // LARGEST:
                del self._entries[key]
            else:
                self.bytes += entry.size
        while self.bytes > self._limit:
            self.bytes -= self._entries.pop(next(iter(self._entries))).size


class Recorded:
    """A cluster for one decision, which keeps the listings that were asked for, and remembers folded pods."""

    def __init__(self, cluster: Cluster, folds: Folds) -> None:
        self._cluster, self._folds = cluster, folds
        self._asked: dict[tuple[Resource, str | None], Listing | None] = {}

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        found = self._asked[resource, namespace] = self._cluster.listing(resource, namespace)
        return found

    def consulted(self) -> Consulted:
        return tuple(
            (resource, namespace, None if found is None else ref(found))
            for (resource, namespace), found in self._asked.items()
        )

    def fold(self, template: PodTemplate, context: Context) -> tuple[Decision, PodView]:
        """A `webhook.admission.mutation.Folding`, which `project` there looks for."""
        return self._folds.of(template, context, self)


@dataclass(slots=True)
class _Fold:
    folded: Decision
    view: PodView
    unchanged: bool
    """Whether the pod is left as it is."""
    consulted: Consulted
    size: int = 0

    @classmethod
    def of(cls, template: PodTemplate, folded: Decision, view: PodView, consulted: Consulted) -> _Fold:
        changes = tuple(replace(change, why=change.why.settled()) for change in folded.changes)
        unchanged = folded.object is template.pod
        return cls(replace(folded, changes=changes), view, unchanged, consulted)

    def answer(self, template: PodTemplate) -> tuple[Decision, PodView]:
        if self.unchanged:
            return replace(self.folded, object=template.pod), template.view
        return self.folded, self.view
