"""Nodes with accelerators, and pods that ask for them."""

from __future__ import annotations

from typing import Any

from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.core.facts import Facts
from policies.core.listing import NO_OBJECTS, Listing
from policies.core.resources import Resource
from policies.core.settings import S, default_settings
from policies.kube.json import Json
from tests.manifests import manifest

GPU = "nvidia.com/gpu"


class Nodes:
    """A cluster of which only the nodes are known."""

    def __init__(self, *nodes: Json) -> None:
        self._listing = Listing(nodes)

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        return {Resource.NODES: self._listing, Resource.DEVICE_CLASSES: NO_OBJECTS}.get(resource)


def facts(*nodes: Json, settings: GpuAffinity | None = None) -> Facts:
    def lookup(model: type[S], /) -> S:
        return settings if isinstance(settings, model) else default_settings(model)

    return Facts("ml", Nodes(*nodes), lookup)


def node(
    name: str, labels: Json | None = None, gpus: int | str = 0, taints: tuple[Json, ...] = (), **spec: Any
) -> Json:
    allocatable = {"cpu": "64", **({GPU: str(gpus)} if gpus != "" else {})}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {"taints": list(taints), **spec},
        "status": {"allocatable": allocatable},
    }


def pod(gpus: int = 1, annotations: Json | None = None, **spec: Any) -> Json:
    resources = {"limits": {GPU: str(gpus)}} if gpus else {}
    return manifest(
        "Pod",
        "p",
        {"containers": [{"name": "main", "resources": resources}], **spec},
        annotations=annotations or {},
    )


def affinity(*terms: Json) -> Json:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"nodeAffinity": required}


def expression(key: str, operator: str, *values: str) -> Json:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def labelled(*expressions: str) -> Json:
    """A required affinity with one term, of expressions such as `zone In a,b`."""
    found = []
    for each in expressions:
        key, operator, *values = each.replace(",", " ").split()
        found.append(expression(key, operator, *values))
    return affinity({"matchExpressions": found})


def named(key: str, name: str) -> Json:
    """A required affinity with one term, of a field."""
    return affinity({"matchFields": [expression(key, "In", name)]})
