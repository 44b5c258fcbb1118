"""Pods in objects of unknown kinds, found by their structure. The caller limits the object's size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from policies.core.pod_view import PodView
from policies.core.target import PodTemplate
from policies.core.workloads import Shape, Workload
from policies.kube.field_paths import Steps, field_path
from policies.kube.group_kinds import GroupKind, kind_of
from policies.kube.json import Json, mapping

MAX_FOUND: Final = 16
"""Templates of one object that are read, and fields that are reported as unread."""
DEEPEST: Final = 32
_SKIPPED: Final = frozenset({"metadata", "status", "managedFields"})
_REFERENCES: Final = ("templateref", "workloadref", "runtimeref")


class Shapes(Struct, frozen=True):
    """The pods that were found in an object."""

    templates: tuple[PodTemplate, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    """Fields that may describe pods in another form: the field path, and half a sentence about the form."""


def found_by_shape(obj: Json) -> Shapes:
    """Every pod spec of an object, with or without metadata, and other fields that may describe pods."""
    kind = kind_of(obj)
    templates: list[PodTemplate] = []
    unread: list[tuple[str, str]] = []
    for steps, value in _walk(obj, ()):
        if isinstance(value, str):
            if "containers" in value and "image" in value:
                unread.append((field_path(steps), "a string that describes containers"))
        elif str(steps[-1]).lower().endswith(_REFERENCES):
            unread.append((field_path(steps), "a reference to an object that may hold a pod template"))
        else:
            templates.append(_template(obj, kind, steps, value))
        if len(templates) >= MAX_FOUND or len(unread) >= MAX_FOUND:
            unread.append(("", f"only the first {MAX_FOUND} places that look like pods are read"))
            break
    return Shapes(tuple(templates), tuple(unread))


def _walk(node: Any, steps: Steps) -> Iterator[tuple[Steps, Any]]:
    """Each pod spec, each long string and each reference to a template, with its steps."""
    if len(steps) > DEEPEST:
        return
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in items:
        if isinstance(value, str):
            if len(value) > _SHORTEST:
                yield (*steps, key), value
            continue
        if not isinstance(value, (dict, list)) or (not steps and key in _SKIPPED):
            continue
        inside = (*steps, key)
        if isinstance(value, dict) and (
            is_pod_spec(value) or (isinstance(key, str) and key.lower().endswith(_REFERENCES))
        ):
            yield inside, value
        else:
            yield from _walk(value, inside)


def is_pod_spec(node: Json) -> bool:
    """Whether a map has the structure of a pod spec: containers with names and images."""
    containers = node.get("containers")
    return (
        isinstance(containers, list)
        and bool(containers)
        and all(
            isinstance(each, dict)
            and isinstance(each.get("name"), str)
            and isinstance(each.get("image"), str)
            for each in containers
        )
    )


_SHORTEST: Final = len("containers: [{image: a}]")


def _template(obj: Json, kind: GroupKind, steps: Steps, spec: Json) -> PodTemplate:
    workload = Workload(api_group=kind.group, kind=kind.kind)
    above = _above(obj, steps)
    if steps[-1] == "spec" and len(steps) > 1 and set(above) <= {"apiVersion", "kind", "metadata", "spec"}:
        metadata, path, shape = mapping(above, "metadata"), steps[:-1], Shape.TEMPLATE
    else:
        metadata, path, shape = {}, steps, Shape.SPEC
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return PodTemplate(
        PodView(pod), field_path(path), field_path(steps), workload, path, shape=shape, by_shape=True
    )


def _above(obj: Any, steps: Steps) -> Json:
    for step in steps[:-1]:
        obj = obj[step]
    return obj if isinstance(obj, dict) else {}
