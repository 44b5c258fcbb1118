"""The decision of admission about each object of a cluster, as if it were created now.

Law: this module decides nothing; `engine.decide` does, with the facts of the cluster itself. Objects are read
page by page and released.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import orjson

from policies.core import registry
from policies.core.annotations import ADMISSION, EXEMPT, MODEL_CONFIG, POLICY_LABEL
from policies.core.completing import COMPLETING, named_by
from policies.core.facts import Facts
from policies.core.workloads import Workload
from policies.kube.group_kinds import CONFIG_MAP, JOB, POD, SECRET, GroupKind, kind_of
from policies.kube.json import Json, maps, text
from policies.kube.metadata import controller
from webhook.admission.configuration import Config
from webhook.admission.engine import decide, in_scope
from webhook.cli.cluster_facts import Surroundings, facts_of, names_of
from webhook.cli.connection import Wait
from webhook.cli.output.review import Review
from webhook.cli.tell import tell
from webhook.config.load import rules
from webhook.errors import UserError
from webhook.kube import crds
from webhook.kube.api import ApiServer
from webhook.kube.discovery import Collection as Served
from webhook.kube.discovery import may_list, served
from webhook.kube.errors import ApiError
from webhook.kube.offline import Document

MOST_WHOLE: Final = 2_000
"""Objects that others name, which are kept from page to page."""
AT_ONCE: Final = 16
"""Such objects that are read at once."""

SELECTORS: Final[Mapping[GroupKind, Sequence[str]]] = {
    CONFIG_MAP: (f"{POLICY_LABEL}=true", f"{MODEL_CONFIG}=true"),
}
"""Kinds of which only the objects that one of the label selectors selects are read."""


@dataclass(frozen=True, slots=True)
class Scan:
    """One pass over the objects of a cluster, or of one namespace, under one policy or several."""

    api: ApiServer
    source: str
    configs: Sequence[Config]
    workloads: Collection[GroupKind]
    cluster: Surroundings
    resources: Sequence[Served]
    naming: Mapping[GroupKind, Workload] = field(default_factory=dict)
    """The kinds whose pods another object completes."""
    completing: Mapping[GroupKind, Served] = field(default_factory=dict)
    """The kinds that complete the pods of others, as they are served."""
    not_read: Sequence[str] = ()
    """What may not be read, in one sentence each."""
    quiet: bool = False
    """Whether unknown kinds are counted only."""

    @classmethod
    async def prepare(cls, api: ApiServer, namespace: str, *configs: Config) -> Scan:
        """Find the readable collections. UserError if none may be read, or there is no such namespace."""
        workloads = dict.fromkeys(kind for config in configs for kind in config.workloads)
        cluster, unknown = await facts_of(api, namespace)
        not_read: list[str] = []
        for kind in (CONFIG_MAP, SECRET):
            names = await names_of(api, kind, namespace)
            if names is None:
                not_read.append(f"a missing {kind.kind} is not reported, since their names cannot be listed")
            else:
                cluster.names[kind] = names
        embedding = await crds.unread(api, {k: v for config in configs for k, v in config.workloads.items()})
        if embedding is None:
            not_read.append(
                "unknown kinds that hold pods are left out, since you may not list CustomResourceDefinitions"
            )
        further = [each.kind for each in embedding or ()]
        found = list(_selected(await served(api, [*kinds_of(workloads), *further]), namespace))
        readable = await asyncio.gather(*(may_list(api, collection) for collection in found))
        resources = [each for each, may in zip(found, readable, strict=True) if may]
        forbidden = {str(each.kind): None for each, may in zip(found, readable, strict=True) if not may}
        place = f"namespace {namespace}" if namespace else "all namespaces"
        if not resources:
            raise UserError(f"you may read nothing that is scanned in {place}")
        if forbidden:
            not_read.append(f"not scanned, since you may not list them in {place}: {', '.join(forbidden)}")
        if unknown:
            not_read.append(f"not known to the rules, since you may not read them: {', '.join(unknown)}")
        for sentence in not_read:
            tell(sentence)
        naming = {
            kind: each
            for config in configs
            for kind, each in config.workloads.items()
            if each.completed_by is not None
        }
        there = any(each.kind in naming for each in resources)
        completing = {each.kind: each for each in await served(api, COMPLETING)} if there else {}
        source = api.context or "cluster"
        scan = cls(api, source, configs, workloads, cluster, resources, naming, completing, not_read)
        if namespace and scan.leaves_alone(namespace):
            tell(f"the policy leaves namespace {namespace} alone")
        return scan

    def reviews(self, wait: Wait) -> Iterator[tuple[Review, ...]]:
        """The decision under each policy about each object that runs and that none of the others made."""
        for obj in self.objects(wait):
            reviews = self._reviews(obj)
            if reviews:
                yield reviews

    def objects(self, wait: Wait) -> Iterator[Json]:
        """Each object that runs, page by page."""
        pages = self._pages()
        while (page := wait(_next(pages))) is not None:
            yield from page

    def leaves_alone(self, namespace: str) -> bool:
        """Whether admission does not look at a namespace."""
        covered = any(config.webhook.namespaces.covers(namespace) for config in self.configs)
        return not covered or self._disabled(namespace)

    def _disabled(self, namespace: str) -> bool:
        labels = Facts(namespace, self.cluster).namespace_labels() or {}
        return labels.get(ADMISSION) == "disabled"

    async def _pages(self) -> AsyncIterator[list[Json]]:
        for listed in self.resources:
            async for items, _ in self.api.pages(listed.path, listed.query, consistent=False):
                # The items of a list need not carry their kind.
                page = [_with_kind(item, listed) for item in items]
                await self.fetch(page)
                yield page

    async def fetch(self, page: Iterable[Json]) -> None:
        """Read the objects that complete the pods of those on a page."""
        whole = self.cluster.whole
        if len(whole) > MOST_WHOLE:
            whole.clear()
        wanted = [
            (kind, text(obj, "metadata", "namespace") if namespaced else "", named.name)
            for obj in page
            if (workload := self.naming.get(kind_of(obj))) is not None
            if (named := named_by(obj, workload)) is not None
            for kind, namespaced in named.candidates
        ]
        missing = list(dict.fromkeys(key for key in wanted if key not in whole))
        for start in range(0, len(missing), AT_ONCE):
            batch = missing[start : start + AT_ONCE]
            found = await asyncio.gather(*(self._one(*key) for key in batch))
            whole.update(zip(batch, found, strict=True))

    async def _one(self, kind: GroupKind, namespace: str, name: str) -> Json | None:
        """An object, by a list of one: who may scan may list, and need not be able to get."""
        listed = self.completing.get(kind)
        if listed is None:
            return None
        collection = listed.inside(namespace) if namespace else listed
        try:
            answer = await self.api.get(collection.path, {"fieldSelector": f"metadata.name={name}"})
        except ApiError as error:
            if error.status in (400, 403):
                return None
            raise
        items = (each for each in maps(answer or {}, "items") if text(each, "metadata", "name") == name)
        return next((_with_kind(item, listed) for item in items), None)

    def _reviews(self, obj: Json) -> tuple[Review, ...]:
        exempted_at = _written_at(obj, EXEMPT)
        obj["metadata"].pop("managedFields", None)  # what kubectl hides, too
        document = Document(self.source, None, obj, exempted_at=exempted_at)
        # As in admission, an object that is in no namespace has an empty one.
        request = replace(document.request(), namespace=document.namespace)
        if self._disabled(document.namespace) or not any(in_scope(request, each) for each in self.configs):
            return ()
        if _finished(obj) or self._judged_at_owner(obj):
            return ()
        return tuple(
            Review(document, decide(request, each, self.cluster), request, self.quiet)
            for each in self.configs
        )

    def _judged_at_owner(self, obj: Json) -> bool:
        """Whether the object is made from a pod template that this scan judges where it is written."""
        owner = controller(obj)
        if owner is None or kind_of(obj) not in (POD, *self.workloads):
            return False
        kind = kind_of(owner)
        return all(
            kind in config.workloads and config.workloads[kind].whole for config in self.configs
        ) and any(each.kind == kind for each in self.resources)


def _with_kind(item: Json, listed: Served) -> Json:
    return {"apiVersion": listed.api_version, "kind": listed.kind.kind, **item}


def _written_at(obj: Json, annotation: str) -> str:
    """When a field manager of an annotation, of the object or its pod template, last changed its fields."""
    key = f'"f:{annotation}"'.encode()
    managed = maps(obj, "metadata", "managedFields")
    return max((text(each, "time") for each in managed if key in orjson.dumps(each)), default="")


async def _next(pages: AsyncIterator[list[Json]]) -> list[Json] | None:
    return await anext(pages, None)


def kinds_of(workloads: Iterable[GroupKind]) -> list[GroupKind]:
    """Every kind that a policy or a rule looks at."""
    by_policies = (kind for policy in registry.mutators().values() for kind in policy.kinds)
    by_rules = (kind for rule in rules().values() for kind in rule.kinds or ())
    return list(dict.fromkeys((*workloads, *by_policies, *by_rules)))


def _selected(collections: Sequence[Served], namespace: str) -> Iterator[Served]:
    """The collections to read: of the namespace, or of all, and of some kinds only labelled objects."""
    for collection in collections:
        if namespace and not collection.namespaced:
            continue
        inside = collection.inside(namespace) if namespace else collection
        selectors = SELECTORS.get(collection.kind)
        yield from [inside.labelled(each) for each in selectors] if selectors else [inside]


def _finished(obj: Json) -> bool:
    """Whether it is a Pod or Job that has ended for good."""
    if kind_of(obj) == POD:
        return text(obj, "status", "phase") in ("Succeeded", "Failed")
    return kind_of(obj) == JOB and any(
        each.get("type") in ("Complete", "Failed") and each.get("status") == "True"
        for each in maps(obj, "status", "conditions")
    )
