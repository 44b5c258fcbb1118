"""Discovery: the paths and versions of kinds, and whether this account may list them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json
from webhook.kube import paths
from webhook.kube.api import ApiServer
from webhook.kube.calls import ApiError


class Collection(Struct, frozen=True):
    """The list of a kind's objects, or of those that a query selects."""

    kind: GroupKind
    api_version: str
    path: str
    namespaced: bool
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def plural(self) -> str:
        """The resource's name in paths."""
        return self.path.rpartition("/")[2]

    def inside(self, namespace: str) -> Collection:
        return replace(self, path=paths.within(self.path, namespace))

    def labelled(self, selector: str) -> Collection:
        return replace(self, query={"labelSelector": selector})


async def served(api: ApiServer, kinds: Iterable[GroupKind]) -> list[Collection]:
    """The collections of those kinds that the API server lists, in the order of `kinds`.

    Each has the preferred version of those with the kind. ApiError without an answer.
    """
    wanted = list(dict.fromkeys(kinds))
    groups = {kind.group for kind in wanted}
    known = {c.kind: c for found in await asyncio.gather(*(_group(api, g) for g in groups)) for c in found}
    return [known[kind] for kind in wanted if kind in known]


async def may_list(api: ApiServer, collection: Collection) -> bool:
    """Whether this account may list a collection. ApiError without an answer."""
    try:
        await api.call("GET", collection.path, query={**collection.query, "limit": "1"})
    except ApiError as error:
        if error.status == 403:
            return False
        raise
    return True


async def _group(api: ApiServer, group: str) -> list[Collection]:
    """The collections of an API group; empty if it is not served."""
    found: dict[GroupKind, Collection] = {}
    for version in await _versions(api, group):
        for collection in _collections(group, version, await api.get(paths.root(version)) or {}):
            found.setdefault(collection.kind, collection)
    return list(found.values())


async def _versions(api: ApiServer, group: str) -> list[str]:
    """The served versions of a group as apiVersions, the preferred one first."""
    if not group:
        return ["v1"]
    answer = await api.get(paths.group(group)) or {}
    versions = [answer.get("preferredVersion") or {}, *(answer.get("versions") or ())]
    return list(dict.fromkeys(version["groupVersion"] for version in versions if "groupVersion" in version))


def _collections(group: str, version: str, answer: Json) -> Iterator[Collection]:
    for resource in answer.get("resources") or ():
        if "/" not in resource["name"] and "list" in resource["verbs"]:
            kind = GroupKind(group, resource["kind"])
            path = paths.collection(version, resource["name"])
            yield Collection(kind, version, path, resource["namespaced"])
