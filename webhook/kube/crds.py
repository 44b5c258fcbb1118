"""The CustomResourceDefinitions of a cluster whose objects hold pods, by their OpenAPI schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from policies.core.workloads import Workload, known_without_pods
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json, mapping, maps, text
from webhook.kube import paths
from webhook.kube.api import ApiServer
from webhook.kube.errors import ApiError

DEEPEST: Final = 24
MOST_FIELDS: Final = 20_000
"""Fields of one schema that are looked at; KServe's largest has 15,000."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """A kind whose schema has pod specs that no entry of the table reads."""

    kind: GroupKind
    paths: tuple[str, ...]
    """Where they are, in the notation of `workloads` in webhook.yaml."""


async def unread(api: ApiServer, workloads: Mapping[GroupKind, Workload]) -> list[Embedding] | None:
    """The kinds with pods that are not in the table; None if the definitions may not be listed."""
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
    """Where objects of a definition hold pods; None where they hold none, or the kind is known."""
    kind = GroupKind(text(crd, "spec", "group"), text(crd, "spec", "names", "kind"))
    if not kind.kind or kind in workloads or kind in known_without_pods():
        return None
    found: dict[str, None] = {}
    for version in maps(crd, "spec", "versions"):
        schema = mapping(version, "schema", "openAPIV3Schema")
        found |= dict.fromkeys(pod_specs(schema))
    return Embedding(kind, tuple(found)) if found else None


def pod_specs(schema: Json) -> Iterator[str]:
    """The paths of pod specs and templates in a schema, `status` left out."""
    left = MOST_FIELDS
    waiting: list[tuple[str, Json, int]] = [("", schema, 0)]
    while waiting and left > 0:
        path, node, depth = waiting.pop()
        left -= 1
        if _is_pod_spec(node):
            yield path.removesuffix(".spec") if path.count(".") else path
            continue
        if depth < DEEPEST:
            waiting += [
                (below, child, depth + 1)
                for below, child in _children(path, node)
                if below not in ("status", "metadata")
            ]


def _children(path: str, node: Json) -> Iterator[tuple[str, Json]]:
    for name, child in mapping(node, "properties").items():
        if isinstance(child, dict):
            yield f"{path}.{name}" if path else name, child
    items: Any = node.get("items")
    if isinstance(items, dict):
        yield f"{path}[*]", items
    values: Any = node.get("additionalProperties")
    if isinstance(values, dict):
        yield f"{path}.*", values


def _is_pod_spec(node: Json) -> bool:
    fields = mapping(node, "properties", "containers", "items", "properties")
    return "name" in fields and "image" in fields
