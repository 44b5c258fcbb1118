"""How workloads start, retry and end, from `lives.yaml`: facts about each kind's controller, so that checks
and mutators about retries, ends and evictions name no kind.

Paths are relative to the `spec` of the kind, with the wildcards of `policies.kube.field_paths`. The spec of a
kind may be part of another object, as a Job's is of a CronJob's: `runs_in` finds both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

from policies.core import data
from policies.core.settings import Field, Model
from policies.core.target import PodTemplate
from policies.kube.field_paths import Steps, every_value_at, field_path, map_above, maps_at, value_at
from policies.kube.group_kinds import GroupKind, kind_of
from policies.kube.images import numbers_of_tag
from policies.kube.json import Json, dig, integer, text
from policies.kube.quantities import whole_number


class Unit(StrEnum):
    """The part of a workload that is started again."""

    CONTAINER = "container"
    """The kubelet restarts a container in its pod."""
    POD = "pod"
    """The failed pod is replaced."""
    ROLE = "role"
    """All pods of the role are replaced."""
    RUN = "run"
    """All pods of the workload are replaced."""


class Evictions(StrEnum):
    """What an eviction, a preemption or a drained node does to a workload."""

    FREE = "free"
    """The pod is replaced, and no retry is used."""
    COUNTED = "counted"
    """It uses a retry, as an error of the program does."""
    FATAL = "fatal"
    """It is never retried."""


class Count(Model):
    """A factor of the number of a role's pods."""

    field: str = Field(description="path relative to the role's `at`")
    default: int = Field(1, ge=0, description="the number if the field is absent")


class PodRole(Model):
    """A group of pods with the same template and the same part in a workload."""

    name: str = Field(min_length=1, description="the controller's name for it, or `each`: the user's names")
    at: str = Field(description="path of the map with its number of pods and its template; empty: the spec")
    count: tuple[Count, ...] = Field((), description="the factors of the number of its pods; none: 1 pod")
    waits_for: str = Field("", description="the role that must be ready before its pods are created")
    needs: str = Field("", description="the role that must be ready before its program succeeds")
    ends: bool = Field(False, description="whether its success ends the workload")
    endless: bool = Field(False, description="whether its programs run until the pod is deleted")
    irreplaceable: bool = Field(False, description="whether the loss of its pod loses the whole run")
    container: str = Field("", description="name of its main container, if the operator sets it")
    label: str = Field("", description="label of its pods, `key=value`, if the operator sets it")
    unless: str = Field("", description="annotation of its pods, `key=value`, with which nothing is lost")


class Retry(Model):
    """What starts again after a failure, and the limit of that."""

    unit: Unit
    fields: tuple[str, ...] = Field((), description="paths of the setting; none: it always applies")
    default: str | None = Field(None, description="the setting's value if it is absent; null: no retry")
    unless: str = Field("", description="a field next to the setting that changes its default")
    values: tuple[str, ...] = Field((), description="the values with which this entry applies; none: any")
    limit: str = Field(
        "", description="path of the maximum number, next to the setting if it begins with a dot; empty: none"
    )
    limit_default: int | None = Field(None, description="the maximum if that field is absent; null: none")
    evictions: Evictions
    exit_codes: str = Field("", description="the exit codes that count, in words, if not all but 0")
    broken: str = Field(
        "", description="what happens instead after a failure, as half a sentence; empty: it is retried"
    )
    useless: tuple[str, ...] = Field((), description="paths of fields that have no effect with it")
    why: str = Field(
        "", description="why it may go on forever, as half a sentence; empty: it may not, or should"
    )
    instead: str = Field("", description="what to write instead")

    def __post_init__(self) -> None:
        if self.limit_default is not None and not self.limit:
            raise ValueError("limitDefault needs limit, the path of the field")
        if (self.values or self.default or self.limit.startswith(".")) and not self.fields:
            raise ValueError("values, default and a limit next to the setting need fields, its paths")


class Ending(Model):
    """What happens to the running pods of a workload after its end."""

    fields: tuple[str, ...] = Field(min_length=1, description="paths of the setting, the usual one first")
    default: str | bool = Field(description="its value if it is absent")
    keeps: tuple[str | bool, ...] = Field(min_length=1, description="values with which running pods stay")
    instead: str | bool = Field(description="the value that deletes them")
    unless: tuple[str, ...] = Field((), description="paths of fields that decide it otherwise")
    deletes: tuple[str, ...] = Field(
        (), description="values with which the pods that have ended are deleted, too, with their logs"
    )


class StartOrder(Model):
    """Whether the controller waits for a role before it creates the pods of another one, which needs it."""

    field: str = Field(description="path of the setting")
    default: str = Field(description="its value if it is absent")
    early: tuple[str, ...] = Field(min_length=1, description="values with which it does not wait")
    instead: str = Field(description="the value with which it waits")
    unless: tuple[str, ...] = Field((), description="paths of fields with which all pods start together")


class Gang(Model):
    """Where a workload says in which queue of Volcano its pods start together."""

    queue: str = Field(description="path of the queue's name")
    default_queue: str = Field("", description="the queue if that field is absent; empty: none")
    least: str = Field(
        "", description="path of the number of pods that start together, by default all; empty: one"
    )


class Schedule(Model):
    """When a workload starts the runs that are in its spec."""

    field: str = Field(description="path of the schedule in cron's syntax")
    further: str = Field("", description="path of a list of such schedules")
    policy: str = Field(description="path of what happens if a run has not ended when the next one is due")
    default: str = Field(description="its value if it is absent")
    overlaps: tuple[str, ...] = Field(min_length=1, description="values with which both run")
    instead: str = Field(description="the value with which the next one waits or is left out")


class Slots(Model):
    """How many processes mpirun may start in the pods of a workload."""

    field: str = Field(description="path of the number in each pod, 1 without it")
    role: str = Field(description="the role whose pods have them")
    unless: tuple[str, ...] = Field(
        (), description="`path=value`, or `path` for any value but false, with which it is another number"
    )


class Refused(Model):
    """What the operator refuses although the API server has accepted it: no pods are created. Or what its
    pods fail with."""

    at: str = Field("", description="path of the maps that it is about; empty: the spec")
    fields: tuple[str, ...] = Field(
        (),
        description="`path=value`, `path<version`, or `path` for any value but false and 0; `env[NAME]` is "
        "the element of a list with that name",
    )
    without: tuple[str, ...] = Field(
        (), description="the same, of which none may hold; a finding names the first"
    )
    spec: tuple[str, ...] = Field((), description="the same of the spec, where `at` is a part of it")
    greater: tuple[str, str] | None = Field(None, description="a number that is greater than another one")
    fails: str = Field("", description="what fails with it, as half a sentence; empty: it is refused")
    instead: str = Field(description="what to write instead")

    def applies(self, node: Json) -> bool:
        if self.greater is not None:
            more, less = (dig(node, *path.split(".")) for path in self.greater)
            return isinstance(more, int) and isinstance(less, int) and more > less
        return all(_holds(node, each) for each in self.fields) and not any(
            _holds(node, each) for each in self.without
        )


def _holds(node: Json, condition: str) -> bool:
    path, below, version = condition.partition("<")
    if below:
        return _is_before(value_at(node, path), version)
    path, equals, wanted = condition.partition("=")
    value = value_at(node, path)
    return value == wanted if equals else bool(value)


def _is_before(value: object, version: str) -> bool:
    """Whether a value is a version before another one; one without two numbers is not."""
    numbers = numbers_of_tag(value) if isinstance(value, str) else ()
    return len(numbers) > 1 and numbers < numbers_of_tag(version)


class Limited(Model):
    """A time after which all of a workload ends, so that longer times of its parts have no effect."""

    by: str = Field(description="path of the time")
    parts: tuple[str, ...] = Field(min_length=1, description="paths of the times of parts")


class Named(Model):
    """A container that the pods of a workload in the spec must have."""

    field: str = Field("", description="path of its name; empty: the controller's name for it, in each role")
    name: str = Field("", description="that name")
    unless: tuple[str, ...] = Field((), description="`path=value` with which no pod needs it")
    otherwise: str = Field(description="what happens without it, in words")


class First(Model):
    """The program that a controller starts in the first container of each pod."""

    images: tuple[str, ...] = Field(min_length=1, description="globs of images of that program")
    names: tuple[str, ...] = Field((), description="names that people give its container")
    unless: tuple[str, ...] = Field(
        (), description="annotations, `key=value`, that leave the pods as they are"
    )
    otherwise: str = Field(description="what happens if it is another one, as half a sentence")
    alike: tuple[str, ...] = Field(
        (), description="globs of images whose tags are versions of that program, of which all pods need one"
    )
    unlike: str = Field("", description="what happens with two of them, as a sentence without its full stop")


class PerPod(Model):
    """Where a workload says how many processes torchrun starts in each pod."""

    fields: tuple[str, ...] = Field(min_length=1, description="paths of the number, or of `auto`")
    default: str = Field("", description="the value without them; empty: unknown")


class Embedded(Model):
    """The spec of another kind inside a spec."""

    api_group: str = ""
    kind: str = Field("", description="empty: a whole object is at the path, of any kind")
    at: str = Field(description="path of the embedded spec, or of the whole object")


class Recreated(Model):
    """What a controller creates again after its time to live has deleted it."""

    ttl: str = Field(description="path of the seconds after which it is deleted")
    what: str = Field(description="what is created again, when and by whom")
    instead: str = Field(description="what to do instead")


class Tried(Model):
    """An experiment in which a release's own controller did what an entry says."""

    when: str = Field(pattern=r"^\d{4}-\d\d-\d\d$", description="the day of the last one")
    release: str = Field(min_length=1, description="the release that ran")
    by: str = Field(min_length=1, description="the test")
    shows: tuple[str, ...] = Field((), description="what it showed that no other field says, in words")


class Life(Model):
    """How the workloads of a kind start, retry and end."""

    api_group: str
    kind: str
    api_versions: tuple[str, ...] = Field((), description="the API versions that it is about; none: all")
    trains: bool = Field(False, description="whether its pods train, whatever they request")
    collective: bool = Field(
        False, description="whether its pods are the ranks of one torch.distributed group of a fixed size"
    )
    labels: tuple[str, ...] = Field(
        (), description="labels of its pods, if another object owns them: `key=value`, or `key` for any value"
    )
    roles: tuple[PodRole, ...] = ()
    retries: tuple[Retry, ...] = ()
    ending: Ending | None = None
    start: StartOrder | None = None
    stops_sidecars: bool = Field(
        False, description="whether the controller stops the other containers when the main one has ended"
    )
    ttl: str = Field("", description="path of the seconds after which a finished workload is deleted")
    failed_kept: str = Field("", description="path of the number of failed runs that are kept")
    logs: str = Field(
        "",
        description="what else keeps or deletes the logs of its pods, in words, so that a short time to live "
        "says nothing about them",
    )
    storage: tuple[str, ...] | None = Field(
        None,
        description="paths of fields with which its pods may keep results, besides the volumes of their "
        "templates; null: the templates never show it",
    )
    every_container: bool = Field(
        False, description="whether it completes only after all main containers of the pods that end"
    )
    recreated: Recreated | None = None
    deadline: str = Field("", description="path of the seconds after which a running workload is ended")
    suspended: str = Field("", description="path of the field that keeps pods from being created")
    managed_by: str = Field("", description="path of the name of the controller that creates the pods")
    controller: str = Field("", description="its value for the kind's own controller, as if it were absent")
    elastic: tuple[str, ...] = Field((), description="paths of fields with which pods may come and go")
    empty: str = Field(
        "", description="what the controller does for a role with 0 pods, as half a sentence; empty: nothing"
    )
    unqueued: tuple[str, ...] = Field(
        (), description="paths of fields with which Kueue admits it only with the annotation of elastic jobs"
    )
    in_turn: tuple[str, ...] = Field(
        (), description="paths of fields with which roles run one after the other"
    )
    gang: Gang | None = None
    per_pod: PerPod | None = None
    slots: Slots | None = None
    schedule: Schedule | None = None
    embeds: tuple[Embedded, ...] = Field((), description="specs of other kinds in its spec")
    refused: tuple[Refused, ...] = ()
    limited: tuple[Limited, ...] = ()
    named: Named | None = None
    first: First | None = None
    misplaced: Mapping[str, str] = Field(
        default_factory=dict,
        description="paths at which people write a field that the API server drops there, with the right "
        "one, or with words for it",
    )
    adds: tuple[str, ...] = Field((), description="what the operator adds to the pods, in words")
    tried: Tried | None = None
    versions: tuple[str, ...] = Field(min_length=1, description="the releases that were read")
    source: str = Field(pattern=r"\S", description="where the facts were read")

    def __post_init__(self) -> None:
        names = {role.name for role in self.roles}
        for role in self.roles:
            for other in filter(None, (role.waits_for, role.needs)):
                if other not in names:
                    raise ValueError(f"role {role.name} names {other}, which is no role of {self.kind}")

    @property
    def gk(self) -> GroupKind:
        return GroupKind(self.api_group, self.kind)


@data.table
def _table() -> tuple[Life, ...]:
    return data.load_list(Life, __package__, "lives.yaml")


@cache
def known_lives() -> Mapping[GroupKind, tuple[Life, ...]]:
    """The entries of lives.yaml by kind; a kind has several if its API versions differ."""
    found: dict[GroupKind, tuple[Life, ...]] = {}
    for life in _table():
        found[life.gk] = (*found.get(life.gk, ()), life)
    return MappingProxyType(found)


def life_of(obj: Json) -> Life | None:
    """The life of an object's kind, in its API version."""
    version = text(obj, "apiVersion").rpartition("/")[2]
    lives = known_lives().get(kind_of(obj), ())
    return next((each for each in lives if not each.api_versions or version in each.api_versions), None)


def run_of(obj: Json) -> Run | None:
    """An object whose kind has a known life."""
    return next(runs_in(obj), None)


def role_of(obj: Json, template: PodTemplate) -> RoleAt | None:
    """The role whose pods a template describes, in the object or in the first workload in it that has one."""
    roles = (run.role_of(template) for run in runs_in(obj))
    return next((role for role in roles if role is not None), None)


class RoleAt(Struct, frozen=True):
    """A role of a workload, with the map that describes it."""

    role: PodRole
    steps: Steps
    """Of that map, in the whole object."""
    pods: int
    name: str
    """Of the role: the controller's name, or the user's."""


class RetryAt(Struct, frozen=True):
    """A retry of a workload, with its setting."""

    retry: Retry
    steps: Steps
    """Of the setting, in the whole object; of the spec if it always applies."""
    value: object
    """Of the setting, or its default."""
    limit: int | None
    """The maximum number; None: none."""


class Run(Struct, frozen=True):
    """The spec of a workload with a known life: of the object, or embedded in it."""

    life: Life
    spec: Json
    steps: Steps
    """Of the spec, in the whole object."""

    def at(self, path: str) -> str:
        """Field path of a path without wildcards."""
        return field_path((*self.steps, *path.split(".")))

    def value(self, path: str) -> Any:
        """The value at a path without wildcards, or None."""
        return dig(self.spec, *path.split("."))

    def has(self, path: str) -> bool:
        """Whether there is a value at a path, which may have wildcards."""
        return any(value is not None for _, value in every_value_at(self.spec, path))

    @property
    def is_elastic(self) -> bool:
        return any(map(self.has, self.life.elastic))

    @property
    def per_pod(self) -> str:
        """What the operator tells torchrun about the number of processes in each pod; empty if nothing."""
        known = self.life.per_pod
        if known is None:
            return ""
        written = (self.value(field) for field in known.fields)
        return str(next((each for each in written if each is not None), known.default))

    @property
    def slots(self) -> int | None:
        """The number of processes that mpirun may start; None if unknown."""
        known = self.life.slots
        if known is None or any(_holds(self.spec, each) for each in known.unless):
            return None
        return integer(self.spec, *known.field.split("."), default=1) * sum(
            each.pods for each in self.roles() if each.role.name == known.role
        )

    @property
    def is_suspended(self) -> bool:
        """Whether no pods are created for now: a person or a queue starts it later."""
        return bool(self.life.suspended) and self.value(self.life.suspended) is True

    @property
    def creates_pods(self) -> bool:
        """Whether the kind's own controller creates its pods, and now."""
        return not (self.is_suspended or self.is_delegated)

    @property
    def is_delegated(self) -> bool:
        """Whether another controller creates its pods, under MultiKueue in another cluster."""
        by = self.value(self.life.managed_by) if self.life.managed_by else None
        return isinstance(by, str) and by not in ("", self.life.controller)

    def refused(self) -> Iterator[tuple[Steps, Refused]]:
        """What its operator refuses in it, with the steps of the map in the whole object."""
        for each in self.life.refused:
            for steps, node in _maps(self.spec, each.at):
                if each.applies(node) and all(_holds(self.spec, wanted) for wanted in each.spec):
                    yield (*self.steps, *steps), each

    @property
    def named(self) -> Named | None:
        """The container that its pods must have."""
        known = self.life.named
        return None if known is None or any(_holds(self.spec, each) for each in known.unless) else known

    def roles(self) -> Iterator[RoleAt]:
        for role in self.life.roles:
            for steps, node in _maps(self.spec, role.at):
                yield self._role_at(role, steps, node)

    def role_of(self, template: PodTemplate) -> RoleAt | None:
        """The role whose pods a template of the object describes."""
        own = len(self.steps)
        if template.steps[:own] != self.steps:
            return None
        below, found = template.steps[own:], []
        for role in self.life.roles:
            at = map_above(self.spec, role.at, below) if role.at else ((), self.spec)
            if at is not None:
                found.append(self._role_at(role, *at))
        return max(found, key=lambda each: len(each.steps), default=None)

    def _role_at(self, role: PodRole, steps: Steps, node: Json) -> RoleAt:
        pods = 1
        for factor in role.count:
            pods *= integer(node, *factor.field.split("."), default=factor.default)
        name = node.get("name") if role.name == EACH else role.name
        return RoleAt(role, (*self.steps, *steps), max(0, pods), name if isinstance(name, str) else "")

    def retries(self) -> Iterator[RetryAt]:
        """What is retried, by each of its settings."""
        for retry in self.life.retries:
            if not retry.fields:
                yield RetryAt(retry, self.steps, None, _limit(retry, self.spec, {}))
            for path in retry.fields:
                above, _, name = path.rpartition(".")
                for steps, node in _maps(self.spec, above):
                    value = node.get(name)
                    if value is None and not (retry.unless and retry.unless in node):
                        value = retry.default
                    if value is not None and (not retry.values or value in retry.values):
                        limit = _limit(retry, self.spec, node)
                        yield RetryAt(retry, (*self.steps, *steps, name), value, limit)


EACH: Final = "each"
"""The name of roles that the user names."""


def _limit(retry: Retry, spec: Json, node: Json) -> int | None:
    """The maximum number of retries; None if there is none."""
    if not retry.limit:
        return None
    found = dig(node, retry.limit[1:]) if retry.limit.startswith(".") else dig(spec, *retry.limit.split("."))
    if isinstance(found, str):  # Argo takes both
        found = whole_number(found, _DIGITS)
    return found if isinstance(found, int) and not isinstance(found, bool) else retry.limit_default


_DIGITS: Final = 9


def _maps(spec: Json, path: str) -> Iterator[tuple[Steps, Json]]:
    return maps_at(spec, path) if path else iter([((), spec)])


def runs_in(obj: Json) -> Iterator[Run]:
    """The workloads of an object whose lives are known: itself, and those that it will create."""
    life = life_of(obj)
    if life is not None:
        yield from _runs(life, obj, ("spec",), _MAX_DEPTH)


def _runs(life: Life, obj: Json, steps: Steps, depth: int) -> Iterator[Run]:
    spec = dig(obj, *steps)
    if not isinstance(spec, dict):
        return
    yield Run(life, spec, steps)
    if not depth:
        return
    for embedded in life.embeds:
        for at, node in _maps(spec, embedded.at):
            if not embedded.kind:
                inner, at = life_of(node), (*at, "spec")
            else:
                inner = next(iter(known_lives()[GroupKind(embedded.api_group, embedded.kind)]))
            if inner is not None:
                yield from _runs(inner, obj, (*steps, *at), depth - 1)


_MAX_DEPTH: Final = 3
"""The deepest nesting of workloads in workloads."""
