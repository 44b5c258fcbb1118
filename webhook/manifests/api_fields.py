"""Fields that the API server does not know, as `kubectl --validate=strict` finds them.

The types are those of the Kubernetes client, in api_fields.json: `[T]` is a list, `{T}` a map. Types of
amounts and of int-or-string are not checked here; `policies.kube.objects` does that for the fields it reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from msgspec import Struct

from policies.core.workloads import Shape, Workload
from policies.kube.field_paths import Steps, every_value_at, field_path
from policies.kube.group_kinds import GroupKind, kind_of
from policies.kube.json import Json, text
from policies.kube.names import did_you_mean
from webhook.admission.coverage import removed_version

_POD_TEMPLATE: Final = "V1PodTemplateSpec"
_LISTS_OF_PODS: Final = {
    "containers": "[V1Container]",
    "initContainers": "[V1Container]",
    "volumes": "[V1Volume]",
}
_PYTHON: Final[Mapping[str, type]] = {"int": int, "bool": bool}
_IN_WORDS: Final = {int: "a whole number", bool: "true or false", dict: "a map", list: "a list", str: "text"}
_HEAD: Final = frozenset({"apiVersion", "kind", "metadata"})
"""The fields of a patch of metadata, which kustomize merges into an object of any version."""
_MOST: Final = 20
"""Problems that are looked for in one object."""


class FieldProblem(Struct, frozen=True):
    path: str
    problem: str


class _Api(Struct, frozen=True):
    """api_fields.json."""

    kubernetes: str
    kinds: Mapping[str, str]
    """The type of each kind: `apps/v1 Deployment`."""
    types: Mapping[str, Mapping[str, str]]
    """The fields of each type, with their types."""


@cache
def _api() -> _Api:
    return _Api(**json.loads(files(__package__).joinpath("api_fields.json").read_text("utf-8")))


def newest_kubernetes() -> str:
    """The version whose fields are known, such as 1.37."""
    return _api().kubernetes


def field_problems(obj: Json, workloads: Mapping[GroupKind, Workload]) -> list[FieldProblem]:
    """The unknown and mistyped fields of a built-in kind, or of the pods of another known kind; the
    first few of them. An apiVersion that Kubernetes no longer has is one, too."""
    kind = f"{text(obj, 'apiVersion')} {text(obj, 'kind')}"
    removed = removed_version(text(obj, "apiVersion"), text(obj, "kind"))
    if removed and not obj.keys() <= _HEAD:
        said = f"Kubernetes has no such version since {removed.since}, and kubectl refuses the object"
        return [FieldProblem("apiVersion", f"{said}; use {removed.use}")]
    if _is_encrypted(obj):
        obj = {key: value for key, value in obj.items() if key != "sops"}
    places: list[tuple[Steps, Any, str]] = []
    if kind in _api().kinds:
        places.append(((), obj, _api().kinds[kind]))
    elif (workload := workloads.get(kind_of(obj))) is not None:
        places = list(_pods(obj, workload))
    found: list[FieldProblem] = []
    for place in places:
        for problem in _walk(*place):
            found.append(problem)
            if len(found) >= _MOST:
                return found
    return found


def _pods(obj: Json, workload: Workload) -> Iterator[tuple[Steps, Any, str]]:
    """The pod templates of an object. Of a pod spec among other fields only the lists are known."""
    templates = workload.shape is Shape.TEMPLATE
    for path in workload.templates if templates else ():
        yield from ((steps, value, _POD_TEMPLATE) for steps, value in every_value_at(obj, path))
    for path in (*(() if templates else workload.templates), *workload.specs):
        for steps, value in every_value_at(obj, path):
            for name, kind in _LISTS_OF_PODS.items():
                if isinstance(value, dict) and name in value:
                    yield (*steps, name), value[name], kind


def _is_encrypted(obj: Json) -> bool:
    """Whether it is a file of SOPS: whoever applies it decrypts it, which also removes the field.
    https://fluxcd.io/flux/guides/mozilla-sops/
    """
    return bool(text(obj, "sops", "mac"))


def _walk(steps: Steps, value: Any, kind: str) -> Iterator[FieldProblem]:
    """The problems of a value and all below it, in the order of the object."""
    todo: list[tuple[Steps, Any, str]] = [(steps, value, kind)]
    while todo:
        steps, value, kind = todo.pop()
        if value is None:
            continue
        fields = _api().types.get(kind)
        expected = dict if fields or kind[0] == "{" else list if kind[0] == "[" else _PYTHON.get(kind)
        if expected is not None and type(value) is not expected:
            yield FieldProblem(field_path(steps), f"{_IN_WORDS[expected]} is expected, not {_said(value)}")
            continue
        below: list[tuple[Steps, Any, str]] = []
        if fields is not None:
            for key, inner in value.items():
                if key in fields:
                    below.append(((*steps, key), inner, fields[key]))
                elif not key.startswith("$"):  # a directive of a patch
                    yield FieldProblem(field_path((*steps, key)), _no_such_field(key, fields))
        elif kind[0] == "[":
            below = [((*steps, index), inner, kind[1:-1]) for index, inner in enumerate(value)]
        elif kind[0] == "{":
            below = [((*steps, key), inner, kind[1:-1]) for key, inner in value.items()]
        todo += reversed(below)


def _no_such_field(key: str, fields: Mapping[str, str]) -> str:
    return (
        f"Kubernetes {_api().kubernetes} has no such field: kubectl refuses the object, and the API server "
        f"drops the field{did_you_mean(key, fields)}"
    )


def _said(value: Any) -> str:
    return _IN_WORDS.get(type(value), "a number")
