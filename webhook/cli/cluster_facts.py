"""The facts of a cluster that a command reads once, without watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Final

from policies.core.facts import WholeObjects, find_by_name
from policies.core.resources import Resource, resource_kinds
from policies.kube.group_kinds import CLAIM, SERVICE, GroupKind
from policies.kube.json import Json, text
from webhook.errors import UserError
from webhook.kube import paths
from webhook.kube.api import TOO_LARGE, ApiServer
from webhook.kube.caches import ClusterCache, ObservedStarts, Store
from webhook.kube.calls import ApiError


class ClusterSnapshot(ClusterCache, WholeObjects):
    """The facts of a cluster, and the objects that the scanned ones refer to by name."""

    def __init__(self) -> None:
        super().__init__()
        self.referenced: dict[tuple[GroupKind, str, str], Json | None] = {}
        """By kind, namespace and name; None if there is no such object, or it may not be read."""
        self.names: dict[GroupKind, frozenset[tuple[str, str]]] = {}
        """Namespace and name of every object of some kinds."""
        self.read_whole: dict[GroupKind, list[Json]] = {}
        """Every object of some kinds that have no namespaces."""
        self.only = ""
        """The namespace that was read; empty for all."""

    def named(self, kind: GroupKind, namespace: str, name: str) -> Json | None:
        return self.referenced.get((kind, namespace, name))

    def every(self, kind: GroupKind, namespace: str | None) -> Iterable[Json]:
        return self.read_whole.get(kind, ())

    def lacks(self, kind: GroupKind, namespace: str, name: str) -> bool:
        if self.only not in ("", namespace):
            return False
        if kind in self.names:
            return (namespace, name) not in self.names[kind]
        resource = {SERVICE: Resource.SERVICES, CLAIM: Resource.CLAIMS}.get(kind)
        listing = None if resource is None else self.listing(resource, namespace)
        return listing is not None and find_by_name(listing, name) is None


async def read_facts(api: ApiServer, namespace: str) -> tuple[ClusterSnapshot, list[str]]:
    """The facts of the cluster, or of one namespace, and the kinds that may not be read."""
    cache = ClusterSnapshot()
    forbidden: list[str] = []

    async def read(path: str, query: Mapping[str, str], store: Store | ObservedStarts) -> None:
        store.begin()
        try:
            async for item in _items(api, path, query, namespace):
                store.put(item)
        except ApiError as error:
            if error.status not in (403, 404) and error.reason != TOO_LARGE:
                raise
            store.lost(error)
            if error.status == 403:
                forbidden.append(store.kind)
        else:
            store.commit()

    await asyncio.gather(*(read(path, query, store) for path, query, store in cache.sources))
    cache.only = namespace
    return cache, sorted(set(forbidden))


async def read_names(api: ApiServer, kind: GroupKind, namespace: str) -> frozenset[tuple[str, str]] | None:
    """Namespace and name of every object of a core kind; None if they may not be listed. The API server
    sends only their metadata."""
    path = paths.collection("v1", kind.resource, namespace)
    found: set[tuple[str, str]] = set()
    try:
        async for page, _ in api.pages(path, {}, consistent=False, headers=_METADATA_ONLY):
            found |= {(text(item, "metadata", "namespace"), text(item, "metadata", "name")) for item in page}
    except ApiError as error:
        if error.status != 403:
            raise
        return None
    return frozenset(found)


_METADATA_ONLY: Final = {
    "Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
}


async def _items(api: ApiServer, path: str, query: Mapping[str, str], namespace: str) -> AsyncIterator[Json]:
    resource = path.rpartition("/")[2]
    if namespace and resource == Resource.NAMESPACES.value:
        # With rights for only one namespace, a user may get the Namespace but not list it.
        one = await api.get(paths.one("v1", resource, namespace))
        if one is None:
            raise UserError(f"there is no namespace {namespace}")
        yield one
        return
    cluster_scoped = {known.plural for known in resource_kinds() if not known.namespaced}
    if namespace and resource not in cluster_scoped and "/namespaces/" not in path:
        path = paths.within(path, namespace)
    async for item in api.objects(path, query):
        yield item
