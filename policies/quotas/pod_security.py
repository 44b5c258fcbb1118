"""The Pod Security Standards: which fields of a pod a level refuses, from `pod_security.yaml`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from policies.core import data
from policies.core.settings import Field, Model
from policies.core.target import PodTemplate
from policies.kube.field_paths import every_value_at, field_path
from policies.kube.json import Json

Value: TypeAlias = bool | int | str

_LABEL: Final = "pod-security.kubernetes.io/"
_STRICTNESS: Final = {"privileged": 0, "baseline": 1, "restricted": 2}
_VERSION: Final = re.compile(r"v1\.(\d{1,3})")
_STABLE: Final = 25
"""The minor version in which the labels became stable. All clusters have at least its controls."""
_NEWEST: Final = 1000


class Later(Model):
    """Values that later versions allow, too."""

    since: int = Field(description="the minor version of Kubernetes")
    allowed: tuple[Value, ...] = Field(min_length=1)


class Control(Model):
    """An entry of `pod_security.yaml`."""

    name: str = Field(description="its name in the standards")
    level: Literal["baseline", "restricted"] = Field(description="the less strict of the levels that have it")
    source: str = Field(description="the file of the API server that checks it")
    since: int = Field(0, description="the first minor version that has it")
    pod: tuple[str, ...] = Field((), description="fields of the pod's spec")
    containers: tuple[str, ...] = Field((), description="fields of containers and init containers")
    allowed: tuple[Value, ...] = Field((), description="the allowed values; without any, all are refused")
    later: tuple[Later, ...] = ()
    refused: tuple[Value, ...] = Field((), description="the refused values; all others are allowed")
    contains: str = Field("", description="what the list must contain")
    required: bool = Field(
        False, description="whether each container needs it, in its own field or in the pod's"
    )
    linux: bool = Field(False, description="whether pods for Windows do not need it")
    user_namespaces: int = Field(
        _NEWEST, description="the minor version from which pods with hostUsers: false do not need it"
    )

    @property
    def wanted(self) -> str:
        """What a required field must be or contain, as a sentence about it continues; empty for others."""
        if self.contains:
            return f"must contain {self.contains}"
        return f"must be {' or '.join(map(_text, self.allowed))}" if self.required else ""

    def admits(self, value: Any, highest: int) -> bool:
        """Whether it allows a value that a field has."""
        if self.contains:
            return isinstance(value, list) and self.contains in value
        if self.refused:
            return not _among(value, self.refused)
        later = (each.allowed for each in self.later if each.since <= highest)
        return any(_among(value, values) for values in (self.allowed, *later))


class Versions(NamedTuple):
    """The minor versions of Kubernetes whose controls may be in force."""

    lowest: int
    highest: int


class Added(NamedTuple):
    """A container, or what an operator adds as one."""

    name: str
    path: str
    """The field that has its fields."""
    spec: Json


class Violation(NamedTuple):
    """A field that a level refuses, or the lack of one."""

    path: str
    field: str
    """The field as it is in the pod's or a container's documentation."""
    container: str
    """The name of the container; empty for a field of the pod."""
    what: str
    """What is wrong with the field, as a sentence about it continues."""
    is_missing: bool
    """Whether it is only missing, so that something may add it."""


def enforced(labels: Mapping[str, str]) -> str | None:
    """The level that a namespace enforces, `baseline` or `restricted`; None if it refuses no pod."""
    level = labels.get(f"{_LABEL}enforce", "")
    return level if _STRICTNESS.get(level) else None


def is_warned_about(labels: Mapping[str, str]) -> bool:
    """Whether the API server itself warns about Deployments and other kinds of Kubernetes whose pods the
    namespace refuses. Without a label for warnings it takes the enforced level (`PolicyToEvaluate`)."""
    level = labels.get(f"{_LABEL}enforce", "")
    return _STRICTNESS.get(labels.get(f"{_LABEL}warn", level), 0) >= _STRICTNESS.get(level, 0)


def versions(labels: Mapping[str, str], oldest_kubelet: tuple[int, int] | None) -> Versions:
    """The versions in question. The API server is at least as new as its kubelets; of a version that it
    does not know yet it takes its own."""
    known = _STABLE if oldest_kubelet is None else max(_STABLE, oldest_kubelet[1])
    match = _VERSION.fullmatch(labels.get(f"{_LABEL}enforce-version", ""))
    if match is None:
        return Versions(known, _NEWEST)
    return Versions(min(int(match[1]), known), int(match[1]))


def violations(
    template: PodTemplate, level: str, span: Versions, added: Sequence[Added] = ()
) -> Iterator[Violation]:
    """What a level refuses in the pods of a template, in the order of the table."""
    containers = [Added(each.name, template.at(each), each.spec) for each in template.containers()]
    containers += added
    found: dict[tuple[str, bool], Violation] = {}
    for control in controls():
        if _STRICTNESS[control.level] > _STRICTNESS[level] or control.since > span.lowest:
            continue
        if control.linux and template.typed.spec.operating_system == "windows":
            continue
        if control.user_namespaces <= span.highest and template.spec.get("hostUsers") is False:
            continue
        for each in _violations(control, template, containers, span.highest):
            found[each.path, each.is_missing] = each
    yield from found.values()


def _violations(
    control: Control, template: PodTemplate, containers: Iterable[Added], highest: int
) -> Iterator[Violation]:
    in_pod = list(_values(template.spec, control.pod))
    for field, value in in_pod:
        if not control.admits(value, highest):
            yield Violation(f"{template.spec_path}.{field}", field, "", *_wrong(control, value))
    given = any(control.admits(value, highest) for _, value in in_pod)
    for name, path, spec in containers:
        own = list(_values(spec, control.containers))
        for field, value in own:
            if not control.admits(value, highest):
                yield Violation(f"{path}.{field}", field, name, *_wrong(control, value))
        if control.required and not own and not given:
            field = control.containers[0]
            yield Violation(f"{path}.{field}", field, name, control.wanted, True)


def _wrong(control: Control, value: Any) -> tuple[str, bool]:
    """What is wrong with a value, and whether only something is missing in it."""
    refused = f"must not be {_text(value)}" if isinstance(value, (bool, int, str)) else "must not be set"
    return control.wanted or refused, bool(control.contains)


def _values(obj: Json, fields: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """The values of fields, each with its path; null counts as absent."""
    for path in fields:
        for steps, value in every_value_at(obj, path):
            if value is not None:
                yield field_path(steps), value


def _among(value: Any, values: tuple[Value, ...]) -> bool:
    """Whether a value is one of a kind of JSON: `false` is no 0."""
    return any(type(value) is type(each) and value == each for each in values)


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


controls = data.entries(Control, __package__, "pod_security.yaml")
