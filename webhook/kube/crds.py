"""The CustomResourceDefinitions whose objects contain pod specs, by their OpenAPI schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from policies.core.workloads import Workload, known_without_pods
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json, mapping, maps, text
from webhook.kube import paths
from webhook.kube.api import ApiServer
from webhook.kube.calls import ApiError

DEEPEST: Final = 24
MAX_FIELDS: Final = 20_000
"""The fields that are read of one schema; KServe's largest has 15,000."""


class Embedding(Struct, frozen=True):
    """A kind with pod specs that is not in the table of workloads."""

    kind: GroupKind
    paths: tuple[str, ...]
    """The paths of the pod specs, in the notation of `workloads` in webhook.yaml."""


async def unread(api: ApiServer, workloads: Mapping[GroupKind, Workload]) -> list[Embedding] | None:
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
    for field, suffix in (("items", "[*]"), ("additionalProperties", ".*")):
        value: Any = node.get(field)
        if isinstance(value, dict):
            yield f"{path}{suffix}", value
