"""How much of an object was read, its unread parts, and the kind that a misspelt one probably is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Final

from msgspec import Struct

from policies.core import data
from policies.core.pod_bases import reference_of
from policies.core.pod_templates import MAX_EMBEDDED, pod_templates
from policies.core.settings import Field, Model
from policies.core.target import PodTemplate
from policies.core.workloads import Workload, is_builtin, known_without_pods, known_workloads
from policies.kube.field_paths import every_value_at, field_path
from policies.kube.group_kinds import DAEMON_SET, DEPLOYMENT, POD, STATEFUL_SET, GroupKind, kind_of
from policies.kube.json import Json, mapping
from policies.kube.names import SIMILAR, closest
from policies.kube.pods import Role
from webhook.admission.shapes import Shapes


class Reading(StrEnum):
    """How much of an object was read."""

    REVIEWED = "reviewed"
    PARTLY = "partly reviewed"
    NOT = "not reviewed"
    NO_PODS = "has no pods"


class Unread(Struct, frozen=True):
    """A part of an object that was not read: its field path (empty: the object), and half a sentence why."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}" if self.path else self.why


NO_TEMPLATE: Final = Unread("", "no pod template was found")


class Coverage(Struct, frozen=True):
    """The read and unread parts of one object."""

    kind: GroupKind
    reading: Reading
    unread: tuple[Unread, ...] = ()
    unknown: bool = False
    """Whether the kind is unknown."""
    by_shape: tuple[str, ...] = ()
    """Field paths of pod specs that were found by their structure."""

    @property
    def missing(self) -> bool:
        """Whether pods of the object may not have been read."""
        return self.reading in (Reading.PARTLY, Reading.NOT)

    @property
    def sentence(self) -> str:
        """One sentence about the unread parts; empty if all was read."""
        if not self.missing:
            return ""
        parts = [str(each) for each in self.unread]
        if self.by_shape:
            parts.append(f"{', '.join(self.by_shape)} was found by shape, so findings there only warn")
        why = f" ({'; '.join(parts)})" if parts else ""
        return f"{self.reading}: {described(self.kind)}{why}"


def described(kind: GroupKind) -> str:
    """A kind in words."""
    return f"kind {kind.kind or '(none)'} of group {kind.group or 'core'}"


UNKNOWN_KIND: Final = "the kind is unknown; `workloads` in webhook.yaml adds it"


def _unknown(kind: GroupKind) -> str:
    close = meant(kind)
    return UNKNOWN_KIND if close is None else f"the kind is unknown; did you mean {described(close)}?"


def not_reviewed(kind: GroupKind, why: str) -> Coverage:
    """The coverage of an object that is not reviewed."""
    return Coverage(kind, Reading.NOT, (Unread("", why),))


def coverage(
    obj: Json,
    workloads: Mapping[GroupKind, Workload],
    read: Sequence[PodTemplate],
    undecided: Sequence[str],
    shapes: Shapes | None = None,
) -> Coverage:
    """The coverage of an object. `read`: the reviewed templates; `undecided`: why others were not reviewed;
    `shapes`: pod specs found by their structure, if the kind is unknown."""
    kind = kind_of(obj)
    missing = [Unread("", each) for each in undecided]
    workload = workloads.get(kind)
    if kind == POD:
        return _of(kind, read, missing)
    if workload is not None:
        completed = {path for template in read for path in template.reads}
        unread = _unread(obj, "", workload, workloads, MAX_EMBEDDED)
        missing += [each for each in unread if each.path not in completed]
        if not read and not missing:
            missing.append(NO_TEMPLATE)
        return _of(kind, read, missing)
    if has_no_pods(kind):
        return Coverage(kind, Reading.NO_PODS)
    found = shapes or Shapes()
    missing += [Unread(path, why) for path, why in found.unread]
    reading = Reading.PARTLY if read else Reading.NOT
    paths = tuple(template.path for template in read)
    return Coverage(kind, reading, (Unread("", _unknown(kind)), *missing), unknown=True, by_shape=paths)


def _of(kind: GroupKind, read: Sequence[PodTemplate], missing: Sequence[Unread]) -> Coverage:
    reading = Reading.REVIEWED if read and not missing else Reading.PARTLY if read else Reading.NOT
    return Coverage(kind, reading, tuple(missing))


def _unread(
    obj: Json, at: str, workload: Workload, workloads: Mapping[GroupKind, Workload], depth: int
) -> Iterator[Unread]:
    """The parts of an object that the table of kinds declares unread. `at`: field path of the object."""
    for field in workload.unread:
        for steps, value in every_value_at(obj, field.path):
            if value not in (None, "", {}, []):
                yield Unread(_joined(at, field_path(steps)), _missing(obj, workload, field.path) or field.why)
    for path in workload.objects:
        for steps, node in every_value_at(obj, path):
            where = _joined(at, field_path(steps))
            inner = kind_of(node) if isinstance(node, dict) else GroupKind("", "")
            if inner in workloads and depth:
                yield from _unread(node, where, workloads[inner], workloads, depth - 1)
            elif inner != POD and not has_no_pods(inner):
                yield Unread(where, f"{described(inner)} is unknown")


def _missing(obj: Json, workload: Workload, path: str) -> str:
    """Which object completes the field at a path, and how to have it read; empty if the field names none."""
    reference = reference_of(obj, workload)
    if reference is None or not reference.at.startswith(path):
        return ""
    kinds = " or ".join(kind.kind for kind, _ in reference.candidates)
    return (
        f"it is completed by {kinds} {reference.name}, which isn't in the input: add its file, or use "
        "--against CONTEXT"
    )


def _joined(at: str, path: str) -> str:
    return f"{at}.{path}" if at else path


def is_fragment(obj: Json, workloads: Mapping[GroupKind, Workload]) -> bool:
    """Whether an object of a built-in kind lacks required fields, so that it is only a part of an object,
    such as a kustomize patch. The missing fields show nothing about the whole object."""
    kind = kind_of(obj)
    if kind.group not in ("", "apps", "batch"):
        return False  # an operator may add them: KServe takes the image from the ServingRuntime
    if kind in (DEPLOYMENT, STATEFUL_SET, DAEMON_SET) and not mapping(obj, "spec", "selector"):
        return True
    templates = pod_templates(obj, workloads)
    return (kind in workloads and not templates) or any(map(_lacks_an_image, templates))


def _lacks_an_image(template: PodTemplate) -> bool:
    return not template.containers(Role.MAIN) or any(not each.image for each in template.containers())


_SIMILAR_GROUP: Final = 0.6


class RemovedVersion(Model):
    """An entry of `removed` in builtin_kinds.yaml."""

    api_version: str
    since: str = Field(description="the release of Kubernetes without it")
    use: str = Field(description="the apiVersion that has the kinds now")
    kinds: frozenset[str] = Field(frozenset(), description="default: all kinds")


class BuiltinKinds(Model):
    """The table builtin_kinds.yaml."""

    kinds: Mapping[str, frozenset[str]] = Field(description="the kinds of each API group of Kubernetes")
    removed: tuple[RemovedVersion, ...] = Field(description="versions that Kubernetes removed")
    moved: Mapping[str, Mapping[str, str]] = Field(
        description="kinds of a group that Kubernetes removed, with the apiVersion that has them now"
    )


builtin_kinds = data.entry(BuiltinKinds, "policies.core", "builtin_kinds.yaml")


@data.table
def _kinds_by_group() -> Mapping[str, frozenset[str]]:
    found = {group: set(kinds) for group, kinds in builtin_kinds().kinds.items()}
    for kind in (*(workload.group_kind for workload in known_workloads()), *known_without_pods()):
        found.setdefault(kind.group, set()).add(kind.kind)
    return {group: frozenset(kinds) for group, kinds in found.items()}


@lru_cache(maxsize=1024)
def meant(kind: GroupKind) -> GroupKind | None:
    """The known kind that an unknown kind probably is; None if the kind is known, or similar to none."""
    known = _kinds_by_group()
    if kind.kind in known.get(kind.group, ()):
        return None
    if moved := builtin_kinds().moved.get(kind.group, {}).get(kind.kind):
        return GroupKind.of(moved, kind.kind)
    group = kind.group if kind.group in known else closest(kind.group, known, _SIMILAR_GROUP)
    others = builtin_kinds().kinds if is_builtin(kind) else (group,)
    for other in (group, *sorted(others)):
        for name in sorted(known.get(other, ())):
            if name.lower() == kind.kind.lower():
                return GroupKind(other, name)
    close = closest(kind.kind, sorted(known.get(kind.group, ())), SIMILAR)
    return GroupKind(kind.group, close) if close else None


def removed_version(api_version: str, kind: str) -> RemovedVersion | None:
    """The removed version of a kind of Kubernetes; None for other kinds."""
    found = (each for each in builtin_kinds().removed if each.api_version == api_version)
    return next((each for each in found if not each.kinds or kind in each.kinds), None)


def has_no_pods(kind: GroupKind) -> bool:
    """Whether objects of a kind have no pods to read. A misspelt kind of Kubernetes may have some."""
    return kind in known_without_pods() or (is_builtin(kind) and meant(kind) is None)
