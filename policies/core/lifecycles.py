"""How workloads start, retry and end, from `lifecycles.yaml`: facts about each kind's controller, so that
checks and mutators about retries, ends and evictions name no kind. `runs` reads objects with them.

Paths are relative to the `spec` of the kind, with the wildcards of `policies.kube.field_paths`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from types import MappingProxyType

from policies.core import data
from policies.core.settings import Field, Model
from policies.kube.field_paths import value_at
from policies.kube.group_kinds import GroupKind, kind_of
from policies.kube.images import numbers_of_tag
from policies.kube.json import Json, dig, text


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
    least: str = Field("", description="path of a number that counts instead if it is greater")


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


class Success(Model):
    """The fields by which a workload may succeed without some of its roles. Their pods are deleted then."""

    roles: str = Field(description="path of the names of the roles that count; without it, all do")
    any: str = Field(description="`path=value` with which the success of one of them is enough")


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
        description="`path=value`, `path<version`, `path^=beginning`, or `path` for any value but false and "
        "0; `env[NAME]` is the element of a list with that name",
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
        return all(holds(node, each) for each in self.fields) and not any(
            holds(node, each) for each in self.without
        )


def holds(node: Json, condition: str) -> bool:
    """Whether a condition such as `path=value`, `path<version`, `path^=beginning` or `path` is met below a
    map."""
    path, below, version = condition.partition("<")
    if below:
        return _is_before(value_at(node, path), version)
    path, equals, wanted = condition.partition("=")
    value = value_at(node, path.removesuffix("^"))
    if path.endswith("^"):
        return isinstance(value, str) and value.startswith(wanted)
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
    starts: str = Field("", description="the command that starts it, after that of the container")
    asks: tuple[str, ...] = Field((), description="commands that need the program, if they name no address")
    asks_at: str = Field("", description="path of the role whose pods ask the program of their own container")
    address: str = Field("", description="the variable with another address of it")


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


class Lifecycle(Model):
    """How the workloads of a kind start, retry and end."""

    api_group: str
    kind: str
    api_versions: tuple[str, ...] = Field((), description="the API versions that it is about; none: all")
    trains: bool = Field(False, description="whether its pods train, whatever they request")
    collective: bool = Field(
        False, description="whether its pods are the ranks of one torch.distributed group of a fixed size"
    )
    whole: bool = Field(
        False, description="whether the operator starts its work only when all of its pods run"
    )
    labels: tuple[str, ...] = Field(
        (), description="labels of its pods, if another object owns them: `key=value`, or `key` for any value"
    )
    roles: tuple[PodRole, ...] = ()
    retries: tuple[Retry, ...] = ()
    ending: Ending | None = None
    success: Success | None = None
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
    together: tuple[str, ...] = Field(
        (), description="paths of fields with which its pods find each other, if it doesn't train by its kind"
    )
    serves: tuple[str, ...] = Field(
        (), description="paths of fields with which it runs until somebody deletes it, as a cluster does"
    )
    least_pods: str = Field("", description="path of the number of pods below which it doesn't work even so")
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
    def group_kind(self) -> GroupKind:
        return GroupKind(self.api_group, self.kind)


_table = data.entries(Lifecycle, __package__, "lifecycles.yaml")


@cache
def known_lifecycles() -> Mapping[GroupKind, tuple[Lifecycle, ...]]:
    """The entries of lifecycles.yaml by kind; a kind has several if its API versions differ."""
    found: dict[GroupKind, tuple[Lifecycle, ...]] = {}
    for life in _table():
        found[life.group_kind] = (*found.get(life.group_kind, ()), life)
    return MappingProxyType(found)


def lifecycle_of(obj: Json) -> Lifecycle | None:
    """The life of an object's kind, in its API version."""
    version = text(obj, "apiVersion").rpartition("/")[2]
    lives = known_lifecycles().get(kind_of(obj), ())
    return next((each for each in lives if not each.api_versions or version in each.api_versions), None)
