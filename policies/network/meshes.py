"""Pods in a mesh, from `meshes.yaml`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from policies.core import data
from policies.core.facts import Facts
from policies.core.settings import Field, Model
from policies.core.target import PodTemplate


class Mesh(Model):
    """An entry of `meshes.yaml`. Entries of lists are `key=value`, or `key` for any value."""

    name: str
    labels: tuple[str, ...] = Field(description="labels of a pod that gets its proxy")
    annotations: tuple[str, ...] = Field(description="annotations of such a pod")
    namespace_labels: tuple[str, ...] = Field(description="labels of a namespace whose pods get its proxy")
    namespace_annotations: tuple[str, ...] = Field((), description="annotations of such a namespace")
    unless: tuple[str, ...] = Field(description="labels or annotations of pods that get none")
    native: tuple[str, ...] = Field(description="annotations with which the proxy is a native sidecar")
    bypass: tuple[str, ...] = Field(description="annotations with which some connections avoid the proxy")
    no_rewrite: str = Field("", description="annotation that leaves HTTP probes as they are")
    proxy_user: int = Field(description="the user whose connections avoid the proxy")
    source: str = Field(description="the documentation that shows it")


def mesh_of(template: PodTemplate, facts: Facts) -> Mesh | None:
    """The mesh that adds a proxy to a pod which is no native sidecar; None if none does, or if it is
    unknown."""
    metadata = template.typed.metadata
    for mesh in _meshes():
        both = {**metadata.labels, **metadata.annotations}
        if _has(both, (*mesh.unless, *mesh.native)):
            continue
        named = _has(metadata.labels, mesh.labels) or _has(metadata.annotations, mesh.annotations)
        if named or _has(facts.namespace_labels() or {}, mesh.namespace_labels):
            return mesh
        if _has(facts.namespace_annotations(), mesh.namespace_annotations):
            return mesh
    return None


def bypasses(template: PodTemplate, mesh: Mesh) -> bool:
    """Whether an annotation lets connections avoid the proxy."""
    return _has(template.typed.metadata.annotations, mesh.bypass)


def _has(given: Mapping[str, str], wanted: Iterable[str]) -> bool:
    return any(
        key in given and (not value or given[key] == value)
        for key, _, value in (each.partition("=") for each in wanted)
    )


@data.table
def _meshes() -> tuple[Mesh, ...]:
    return data.load_list(Mesh, __package__, "meshes.yaml")
