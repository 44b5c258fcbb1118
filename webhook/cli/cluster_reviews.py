"""The decision of `engine.decide` about each object of a cluster, as if it were created now.

Objects are read page by page and released.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import orjson
from msgspec import Struct

from policies.core import registry
from policies.core.annotations import EXEMPT, MODEL_CONFIG, POLICY_LABEL
from policies.core.facts import Facts
from policies.core.pod_bases import BASE_KINDS, reference_of
from policies.core.workloads import Workload
from policies.kube.group_kinds import CONFIG_MAP, JOB, MUTATING_WEBHOOKS, POD, SECRET, GroupKind, kind_of
from policies.kube.json import Json, maps, text
from policies.kube.metadata import controller
from webhook.admission.configuration import Config
from webhook.admission.engine import decide
from webhook.admission.review import Review
from webhook.admission.scope import is_disabled, out_of_scope
from webhook.cli.cluster_facts import ClusterSnapshot, read_facts, read_names
from webhook.cli.connection import Wait
from webhook.cli.reviewed import Reviewed
from webhook.cli.terminal import print_note
from webhook.config.load import rules
from webhook.errors import UserError
from webhook.kube.api import ApiServer
from webhook.kube.calls import ApiError
from webhook.kube.discovery import Collection as Served
from webhook.kube.discovery import Embedding, may_list, served, unread_definitions
from webhook.manifests.files import Document

MAX_REFERENCED: Final = 2_000
"""Objects referenced by others that are kept from page to page."""
CONCURRENT_READS: Final = 16
"""Such objects that are read at the same time."""

SELECTORS: Final[Mapping[GroupKind, Sequence[str]]] = {
    CONFIG_MAP: (f"{POLICY_LABEL}=true", f"{MODEL_CONFIG}=true"),
}
"""Kinds of which only the objects with one of these label selectors are read."""

READ_WHOLE: Final = (MUTATING_WEBHOOKS,)
"""Kinds of which a rule compares all objects with each other."""


_NAMED: Final = (CONFIG_MAP, SECRET)
"""Kinds of which the names are read: a rule reports references to missing objects."""


class Scan(Struct, frozen=True):
    """One pass over the objects of a cluster, or of one namespace, under one policy or more."""

    api: ApiServer
    source: str
    configs: Sequence[Config]
    workloads: Collection[GroupKind]
    cluster: ClusterSnapshot
    resources: Sequence[Served]
    based: Mapping[GroupKind, Workload]
    """The kinds whose pods have a base: another object completes them."""
    bases: Mapping[GroupKind, Served]
    """The kinds of these bases."""
    not_read: Sequence[str]
    """One sentence for each kind that may not be read."""

    @classmethod
    async def prepare(cls, api: ApiServer, namespace: str, *configs: Config) -> Scan:
        """Find the readable collections. UserError if none may be read, or there is no such namespace."""
        workloads = {kind: each for config in configs for kind, each in config.workloads.items()}
        place = f"namespace {namespace}" if namespace else "all namespaces"
        cluster, unknown = await read_facts(api, namespace)
        cluster.names.update(await _names(api, namespace))
        embedding = await unread_definitions(api, workloads)
        kinds = [*kinds_of(workloads), *(each.kind for each in embedding or ())]
        resources, forbidden = await _readable(api, _selected(await served(api, kinds), namespace))
        if not resources:
            raise UserError(f"you may not read any of the scanned objects in {place}")
        not_read = list(_missing_rights(cluster, embedding, forbidden, unknown, place))
        for sentence in not_read:
            print_note(sentence)
        for each in resources:
            if each.kind in READ_WHOLE:
                items = api.objects(each.path, {})
                cluster.read_whole[each.kind] = [_with_kind(item, each) async for item in items]
        based = {kind: each for kind, each in workloads.items() if each.completed_by is not None}
        any_based = any(each.kind in based for each in resources)
        bases = {each.kind: each for each in await served(api, BASE_KINDS)} if any_based else {}
        source = api.context or "cluster"
        scan = cls(api, source, configs, workloads, cluster, resources, based, bases, not_read)
        if namespace and not scan._covers(namespace):
            print_note(f"the policy excludes namespace {namespace}")
        return scan

    def reviews(self, wait: Wait) -> Iterator[tuple[Reviewed, ...]]:
        """The decision under each policy about each object, except those made by a reviewed object."""
        for obj in self.objects(wait):
            reviews = self._reviews(obj)
            if reviews:
                yield reviews

    def objects(self, wait: Wait) -> Iterator[Json]:
        """Every object, page by page."""
        pages = self._pages()
        while (page := wait(_next(pages))) is not None:
            yield from page

    def _covers(self, namespace: str) -> bool:
        """Whether a policy covers a namespace that does not exclude itself."""
        covered = any(config.webhook.namespaces.covers(namespace) for config in self.configs)
        return covered and not self._disabled(namespace)

    def _disabled(self, namespace: str) -> bool:
        return is_disabled(Facts(namespace, self.cluster).namespace_labels() or {})

    async def _pages(self) -> AsyncIterator[list[Json]]:
        for listed in self.resources:
            async for items, _ in self.api.pages(listed.path, listed.query, consistent=False):
                # The items of a list may lack their kind.
                page = [_with_kind(item, listed) for item in items]
                await self.fetch_referenced(page)
                yield page

    async def fetch_referenced(self, page: Iterable[Json]) -> None:
        """Read the objects that complete the pods of the objects on a page."""
        known = self.cluster.referenced
        if len(known) > MAX_REFERENCED:
            known.clear()
        wanted = [
            (kind, text(obj, "metadata", "namespace") if namespaced else "", named.name)
            for obj in page
            if (workload := self.based.get(kind_of(obj))) is not None
            if (named := reference_of(obj, workload)) is not None
            for kind, namespaced in named.candidates
        ]
        missing = list(dict.fromkeys(key for key in wanted if key not in known))
        for start in range(0, len(missing), CONCURRENT_READS):
            batch = missing[start : start + CONCURRENT_READS]
            found = await asyncio.gather(*(self._list_one(*key) for key in batch))
            known.update(zip(batch, found, strict=True))

    async def _list_one(self, kind: GroupKind, namespace: str, name: str) -> Json | None:
        """One object, read by a list: a scan needs the right to list, but not the right to get."""
        listed = self.bases.get(kind)
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

    def _reviews(self, obj: Json) -> tuple[Reviewed, ...]:
        exempted_at = _written_at(obj, EXEMPT)
        obj["metadata"].pop("managedFields", None)  # kubectl hides it too
        document = Document(self.source, None, obj, exempted_at=exempted_at)
        # As in admission, the namespace of a cluster-scoped object is empty.
        request = replace(document.request(), namespace=document.namespace)
        if self._disabled(document.namespace) or all(out_of_scope(request, each) for each in self.configs):
            return ()
        if _finished(obj) or self._reviewed_at_owner(obj):
            return ()
        return tuple(
            Reviewed(document, decide(Review(request, each, self.cluster)), request) for each in self.configs
        )

    def _reviewed_at_owner(self, obj: Json) -> bool:
        """Whether the object was made from a pod template of an owner that this scan reviews."""
        owner = controller(obj)
        if owner is None or kind_of(obj) not in (POD, *self.workloads):
            return False
        kind = kind_of(owner)
        return all(
            kind in config.workloads and config.workloads[kind].whole for config in self.configs
        ) and any(each.kind == kind for each in self.resources)


async def _names(api: ApiServer, namespace: str) -> dict[GroupKind, frozenset[tuple[str, str]]]:
    """The names of all objects of the kinds in `_NAMED` that may be listed."""
    found = {kind: await read_names(api, kind, namespace) for kind in _NAMED}
    return {kind: names for kind, names in found.items() if names is not None}


async def _readable(api: ApiServer, found: Iterable[Served]) -> tuple[list[Served], list[str]]:
    """The collections that this account may list, and the kinds of the others."""
    every = list(found)
    readable = await asyncio.gather(*(may_list(api, collection) for collection in every))
    forbidden = {str(each.kind): None for each, may in zip(every, readable, strict=True) if not may}
    return [each for each, may in zip(every, readable, strict=True) if may], list(forbidden)


def _missing_rights(
    cluster: ClusterSnapshot,
    embedding: Sequence[Embedding] | None,
    forbidden: Sequence[str],
    unknown: Sequence[str],
    place: str,
) -> Iterator[str]:
    """A sentence for each right to list that is missing."""
    for kind in _NAMED:
        if kind not in cluster.names:
            yield f"missing {kind.kind}s aren't reported, because you may not list their names"
    if embedding is None:
        yield (
            "unknown kinds that hold pods are not scanned, because you may not list CustomResourceDefinitions"
        )
    if forbidden:
        yield f"not scanned, because you may not list them in {place}: {', '.join(forbidden)}"
    if unknown:
        yield f"unknown to the rules, because you may not read them: {', '.join(unknown)}"


def _with_kind(item: Json, listed: Served) -> Json:
    return {"apiVersion": listed.api_version, "kind": listed.kind.kind, **item}


def _written_at(obj: Json, annotation: str) -> str:
    """When a field manager of an annotation of the object or its pod template last made a change."""
    key = f'"f:{annotation}"'.encode()
    managed = maps(obj, "metadata", "managedFields")
    return max((text(each, "time") for each in managed if key in orjson.dumps(each)), default="")


async def _next(pages: AsyncIterator[list[Json]]) -> list[Json] | None:
    return await anext(pages, None)


def kinds_of(workloads: Iterable[GroupKind]) -> list[GroupKind]:
    """Every kind that a mutator or a rule reads."""
    by_mutators = (kind for mutator in registry.mutators().values() for kind in mutator.kinds)
    by_rules = (kind for rule in rules().values() for kind in rule.kinds or ())
    return list(dict.fromkeys((*workloads, *by_mutators, *by_rules)))


def _selected(collections: Sequence[Served], namespace: str) -> Iterator[Served]:
    """The collections to read, of one namespace or all; of some kinds only the objects with a label."""
    for collection in collections:
        if namespace and not collection.namespaced:
            continue
        inside = collection.inside(namespace) if namespace else collection
        selectors = SELECTORS.get(collection.kind)
        yield from [inside.labelled(each) for each in selectors] if selectors else [inside]


def _finished(obj: Json) -> bool:
    if kind_of(obj) == POD:
        return text(obj, "status", "phase") in ("Succeeded", "Failed")
    return kind_of(obj) == JOB and any(
        each.get("type") in ("Complete", "Failed") and each.get("status") == "True"
        for each in maps(obj, "status", "conditions")
    )
