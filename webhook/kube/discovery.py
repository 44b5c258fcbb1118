"""Discovery: the paths and versions of kinds, whether this account may list them, and which unknown ones have
pods by their schemas."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from policies.core.workloads import Workload, known_without_pods
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json, mapping, maps, text
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


DEEPEST: Final = 24
MAX_FIELDS: Final = 20_000
"""The fields that are read of one schema; KServe's largest has 15,000."""


class Embedding(Struct, frozen=True):
    """A kind with pod specs that is not in the table of workloads."""

    kind: GroupKind
    paths: tuple[str, ...]
    """The paths of the pod specs, in the notation of `workloads` in webhook.yaml."""


async def unread_definitions(
    api: ApiServer, workloads: Mapping[GroupKind, Workload]
) -> list[Embedding] | None:
    """The kinds with pod specs that are not in the table; None if this account may not list definitions."""
    found: list[Embedding] = []
    path = paths.collection("apiextensions.k8s.io/v1", "customresourcedefinitions")
    try:
        found += [each async for crd in api.objects(path) if (each := embedding(crd, workloads)) is not None]
    except ApiError as error:
        if error.status in (403, 404):
            return None
        raise
    return sorted(found, key=lambda each: str(each.kind))


def embedding(crd: Json, workloads: Mapping[GroupKind, Workload]) -> Embedding | None:
    """The pod specs in objects of a definition; None if there are none, or if the kind is known."""
    kind = GroupKind(text(crd, "spec", "group"), text(crd, "spec", "names", "kind"))
    if not kind.kind or kind in workloads or kind in known_without_pods():
        return None
    found: dict[str, None] = {}
    for version in maps(crd, "spec", "versions"):
        schema = mapping(version, "schema", "openAPIV3Schema")
        found |= dict.fromkeys(pod_specs(schema))
    return Embedding(kind, tuple(found)) if found else None


def pod_specs(schema: Json) -> Iterator[str]:
    """The paths of pod specs and templates in a schema, without `status`."""
    pending: list[tuple[str, Json, int]] = [("", schema, 0)]
    for _ in range(MAX_FIELDS):
        if not pending:
            return
        path, node, depth = pending.pop()
        fields = mapping(node, "properties", "containers", "items", "properties")
        if "name" in fields and "image" in fields:
            yield path.removesuffix(".spec") if path.count(".") else path
        elif depth < DEEPEST:
            children = _children(path, node)
            pending += [(at, child, depth + 1) for at, child in children if at not in ("status", "metadata")]


def _children(path: str, node: Json) -> Iterator[tuple[str, Json]]:
    for name, child in mapping(node, "properties").items():
        if isinstance(child, dict):
            yield f"{path}.{name}" if path else name, child
    for inner, suffix in (("items", "[*]"), ("additionalProperties", ".*")):
        value: Any = node.get(inner)
        if isinstance(value, dict):
            yield f"{path}{suffix}", value
