"""A memo of mutated pod templates.

The mutations depend only on the pod, and a workload whose replicas or annotations change mostly keeps its
template. Findings are not remembered here: they may depend on the whole object.
"""

from __future__ import annotations

import dataclasses
from weakref import ReferenceType, ref

import orjson
from msgspec import Struct
from msgspec.structs import replace

from policies.core.facts import Cluster
from policies.core.listing import Listing
from policies.core.pod_view import PodView
from policies.core.resources import Resource
from policies.core.target import PodTemplate
from webhook.admission.configuration import Config
from webhook.admission.decision import Decision
from webhook.admission.projection import fold_template
from webhook.admission.review import Context
from webhook.fast_path.sizes import LARGEST, SLOT, held, trimmed

Consulted = tuple[tuple[Resource, str | None, "ReferenceType[Listing] | None"], ...]
"""The listings that a decision depends on; None for an unknown resource."""


def current(consulted: Consulted, cluster: Cluster) -> bool:
    """Whether the listings are still the current ones."""
    for resource, namespace, known in consulted:
        found = cluster.listing(resource, namespace)
        if found is None:
            if known is not None:
                return False
        elif known is None or known() is not found:
            return False
    return True


class Folds:
    """The mutated pod templates of one process."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of all entries, 0 to remember nothing."""
        self._limit = limit
        self._entries: dict[bytes, _Fold] = {}
        self._unmeasured: list[bytes] = []
        self._config: Config | None = None
        self.bytes = 0
        """The measured size of all entries."""
        self.hits = 0

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, template: PodTemplate, context: Context, cluster: Recorder) -> tuple[Decision, PodView]:
        """`fold_template`, remembered while the listings of `cluster` that it consulted are current."""
        if not self._limit:
            return fold_template(template, context)
        if context.config is not self._config:
            self._entries.clear()
            self._unmeasured.clear()
            self._config, self.bytes = context.config, 0
        try:
            key = orjson.dumps([context.namespace, template.pod])
        except orjson.JSONEncodeError:
            return fold_template(template, context)
        known = self._entries.pop(key, None)
        if known is not None and current(known.consulted, cluster):  # which also records them for this answer
            self._entries[key] = known
            self.hits += 1
            return known.answer(template)
        if known is not None:
            self.bytes -= known.size
        folded, view = fold_template(template, context)
        if not folded.crashes:
            # All listings consulted so far: the mutators may have used values computed from them.
            key = trimmed(key)
            self._entries[key] = _Fold.of(template, folded, view, cluster.consulted())
            self._unmeasured.append(key)
        return folded, view

    def measure(self) -> None:
        """Measure new entries and evict old ones. Call it after a review: until then the rules add what they
        read of a pod to its view."""
        while self._unmeasured:
            key = self._unmeasured.pop()
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


class Recorder:
    """A cluster for one decision. It records the consulted listings, and remembers mutated templates."""

    def __init__(self, cluster: Cluster, folds: Folds) -> None:
        self._cluster, self._folds = cluster, folds
        self._listings: dict[tuple[Resource, str | None], Listing | None] = {}

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        found = self._listings[resource, namespace] = self._cluster.listing(resource, namespace)
        return found

    def consulted(self) -> Consulted:
        return tuple(
            (resource, namespace, None if found is None else ref(found))
            for (resource, namespace), found in self._listings.items()
        )

    def fold(self, template: PodTemplate, context: Context) -> tuple[Decision, PodView]:
        """The `fold` of a review."""
        return self._folds.of(template, context, self)


class _Fold(Struct):
    folded: Decision
    view: PodView
    unchanged: bool
    """Whether no mutator changed the pod."""
    consulted: Consulted
    size: int = 0

    @classmethod
    def of(cls, template: PodTemplate, folded: Decision, view: PodView, consulted: Consulted) -> _Fold:
        changes = tuple(dataclasses.replace(change, why=change.why.formatted()) for change in folded.changes)
        unchanged = folded.object is template.pod
        return cls(replace(folded, changes=changes), view, unchanged, consulted)

    def answer(self, template: PodTemplate) -> tuple[Decision, PodView]:
        if self.unchanged:
            return replace(self.folded, object=template.pod), template.view
        return self.folded, self.view
