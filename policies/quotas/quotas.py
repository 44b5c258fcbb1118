"""What ResourceQuotas count of a pod, and how many such pods they admit.

Semantics: `pkg/quota/v1/evaluator/core/pods.go` of Kubernetes 1.37.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from policies.core.facts import Facts
from policies.core.listing import Listing
from policies.core.resources import Resource
from policies.core.target import PodTemplate, Target
from policies.kube.group_kinds import DEPLOYMENT, LEADER_WORKER_SET, REPLICA_SET, ROLLOUT, STATEFUL_SET
from policies.kube.json import Json, dig, integer, mapping, maps, strings, text
from policies.kube.metadata import controller
from policies.kube.pods import Container, containers
from policies.kube.selectors import matches
from policies.quotas.limit_ranges import (
    NOTHING,
    Amounts,
    Resources,
    amounts,
    defaults_in,
    has_pod_level_resources,
    resources_of,
    shown,
    total,
)
from policies.rollouts.rollouts import (
    RollingUpdate,
    pods_of_a_replica,
    replicas_of,
    running_replicas,
    running_update,
)

REQUIRED: Final = frozenset(
    ("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")
)
"""The resources that every container has to set if a quota counts them (`validationSet`)."""
_NATIVE: Final = ("cpu", "memory", "ephemeral-storage")
_REPLICATED: Final = (DEPLOYMENT, STATEFUL_SET, REPLICA_SET, ROLLOUT, LEADER_WORKER_SET)
MOST_WORKLOADS: Final = 500
"""The most workloads of a set that are added up."""
_NONE: Final = Decimal(0)


# --- pods ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods that are alike, as a quota sees them."""

    pod: Json
    """A map with the pod's `spec`."""
    each: tuple[Resources, ...]
    count: int
    defaults_known: bool

    @property
    def usage(self) -> dict[str, Decimal]:
        """What all of them take, by the names that a quota uses; at the least, if defaults are unknown."""
        return {name: amount * self.count for name, amount in usage_of(self.each).items()}


def pods_of(pod: Json, listed: Iterable[Container], count: int, facts: Facts) -> Pods | None:
    """None if it is unknown what they take."""
    if has_pod_level_resources(pod):
        return None
    try:
        defaults = defaults_in(facts)
        return Pods(pod, resources_of(listed, defaults or NOTHING), count, defaults is not None)
    except ValueError:
        return None


def usage_of(each: Sequence[Resources]) -> dict[str, Decimal]:
    """What one pod takes of each resource, by the names that a quota uses."""
    requests = total((one.container, one.requests) for one in each)
    limits = total((one.container, one.limits) for one in each)
    return {"pods": Decimal(1), "count/pods": Decimal(1), **_named(requests, limits)}


def _named(requests: Amounts, limits: Amounts) -> dict[str, Decimal]:
    found: dict[str, Decimal] = {}
    for name, amount in requests.items():
        if name in _NATIVE or name.startswith("hugepages-"):
            found[name] = found[f"requests.{name}"] = amount
        elif "/" in name:
            found[f"requests.{name}"] = amount
    return found | {f"limits.{name}": limits[name] for name in _NATIVE if name in limits}


def unset(quota: Json, pods: Pods) -> Iterator[tuple[Container, list[str]]]:
    """The containers that do not set a resource which the quota demands of each container."""
    demanded = REQUIRED & mapping(quota, "spec", "hard").keys()
    for each in pods.each if pods.defaults_known else ():
        missing = sorted(demanded - _named(each.requests, each.limits).keys())
        if missing:
            yield each.container, missing


# --- scopes ----------------------------------------------------------------------------------------


def covers(quota: Json, pods: Pods) -> bool | None:
    """Whether a quota counts the pods; None if that can't be decided."""
    scopes = [{"scopeName": scope} for scope in strings(quota, "spec", "scopes")]
    found = [
        _in_scope(term, pods) for term in (*scopes, *maps(quota, "spec", "scopeSelector", "matchExpressions"))
    ]
    return False if False in found else None if None in found else True


def _in_scope(term: Json, pods: Pods) -> bool | None:
    spec = mapping(pods.pod, "spec")
    match text(term, "scopeName"):
        case "Terminating":
            return _terminates(spec)
        case "NotTerminating":
            return not _terminates(spec)
        case "BestEffort":
            return _is_best_effort(pods)
        case "NotBestEffort":
            best_effort = _is_best_effort(pods)
            return None if best_effort is None else not best_effort
        case "PriorityClass":
            return _has_priority(text(spec, "priorityClassName"), term)
        case "CrossNamespacePodAffinity":
            return any(_crosses(spec, kind) for kind in ("podAffinity", "podAntiAffinity"))
    return None


def _terminates(spec: Json) -> bool:
    return integer(spec, "activeDeadlineSeconds", default=-1) >= 0


def _is_best_effort(pods: Pods) -> bool | None:
    if any(
        amount
        for each in pods.each
        for taken in (each.requests, each.limits)
        for name, amount in taken.items()
        if name in ("cpu", "memory")
    ):
        return False
    return True if pods.defaults_known else None


def _has_priority(name: str, term: Json) -> bool | None:
    """A pod without a class may get the cluster's default, which is not known."""
    if not name:
        return None
    operator, values = text(term, "operator"), strings(term, "values")
    selector = {"matchExpressions": [{"key": "class", "operator": operator or "Exists", "values": values}]}
    return matches(selector, {"class": name})


def _crosses(spec: Json, kind: str) -> bool:
    affinity = mapping(spec, "affinity", kind)
    terms = (
        *maps(affinity, "requiredDuringSchedulingIgnoredDuringExecution"),
        *(
            mapping(each, "podAffinityTerm")
            for each in maps(affinity, "preferredDuringSchedulingIgnoredDuringExecution")
        ),
    )
    return any(strings(term, "namespaces") or term.get("namespaceSelector") is not None for term in terms)


# --- room ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Room:
    """How many replicas of a workload a quota admits."""

    quota: str
    resource: str
    """The scarcest one."""
    hard: Decimal
    each: Decimal
    """What a replica takes of it."""
    replicas: Decimal
    """How many fit; not rounded."""
    taken: Decimal = _NONE
    """What others take of it."""

    @property
    def such(self) -> str:
        """How many fit, in words."""
        fits = int(self.replicas)
        return f"{fits} such {'replica' if fits == 1 else 'replicas'}"

    @property
    def terms(self) -> str:
        """The scarcest resource and what a replica takes of it."""
        if self.resource in ("pods", "count/pods") and self.each == 1:
            return f"{self.allowed}"
        return f"{self.allowed}, {shown(self.resource, self.each)} each"

    @property
    def allowed(self) -> str:
        """How much of the scarcest resource there may be."""
        return f"{shown(self.resource, self.hard)} {self.resource}"


@dataclass(frozen=True, slots=True)
class Judged:
    """A workload and one quota that counts its pods."""

    quota: Json
    pods: tuple[Pods, ...]
    """Of one replica."""
    templates: tuple[PodTemplate, ...]
    update: RollingUpdate
    """One that replaces all at once, if the workload has no rolling update."""
    usage: Amounts
    """What one replica takes, by the names that a quota uses."""

    def room(self, taken: Amounts | None = None) -> Room | None:
        """How many replicas there is room for next to what others take; None if nothing limits them.
        Raises ValueError."""
        rooms = []
        name = text(self.quota, "metadata", "name")
        for resource, hard in amounts(mapping(self.quota, "spec", "hard")).items():
            each = self.usage.get(resource)
            if each:
                others = (taken or {}).get(resource, _NONE)
                rooms.append(Room(name, resource, hard, each, max(_NONE, hard - others) / each, others))
        return min(rooms, key=lambda room: room.replicas, default=None)


def judged(target: Target, facts: Facts) -> list[Judged]:
    """The quotas of a workload's namespace that certainly count its pods."""
    return target.cache.once(_judged, target, facts)


def _judged(target: Target, facts: Facts) -> list[Judged]:
    quotas = facts.listing(Resource.QUOTAS)
    if not quotas or controller(target.obj) is not None:
        return []
    replicated = target.kind in _REPLICATED
    replicas = running_replicas(target.obj, facts) if replicated else 1
    if not replicas:
        return []
    update = running_update(target.obj, facts) if replicated else None
    update = update or RollingUpdate(replicas, 0, replicas)
    found = [
        (template, pods_of(template.pod, template.containers(), count, facts))
        for template, count in pods_of_a_replica(target)
        if count > 0
    ]
    judged = []
    for together in [found] if replicated else [[each] for each in found]:
        known = [(template, pods) for template, pods in together if pods is not None]
        if len(known) < len(together):
            continue
        for quota in sorted(quotas, key=lambda quota: text(quota, "metadata", "name")):
            covered = [(each, covers(quota, each[1])) for each in known]
            counted = [each for each, counts in covered if counts]
            if counted and all(counts is not None for _, counts in covered):
                templates, pods = zip(*counted, strict=True)
                judged.append(Judged(quota, pods, templates, update, _sum(each.usage for each in pods)))
    return judged


def in_use(quota: Json) -> dict[str, Decimal] | None:
    """What the controller counted; None in a manifest. Raises ValueError."""
    used = dig(quota, "status", "used")
    return amounts(used) if isinstance(used, dict) else None


def is_running(target: Target, facts: Facts) -> bool:
    """Whether the workload is in the cluster with replicas, so that its pods are among those that were
    counted. The cluster's workloads are known without their containers; one of the manifests has them."""
    return any(
        text(each, "kind") == target.kind.kind
        and text(each, "metadata", "name") == target.name
        and replicas_of(each) > 0
        and (not _is_whole(each) or integer(each, "status", "readyReplicas", default=0) > 0)
        for each in facts.listing(Resource.WORKLOADS) or ()
    )


def _is_whole(workload: Json) -> bool:
    return bool(maps(workload, "spec", "template", "spec", "containers"))


def others_in_set(target: Target, quota: Json, facts: Facts) -> tuple[dict[str, Decimal], bool]:
    """What the other workloads of a set of manifests take of a quota at the least, and whether this one is
    the last of them by kind and name."""
    workloads = facts.listing(Resource.WORKLOADS) or Listing()
    taken: dict[str, Decimal] = {}
    own, last = (target.kind.kind, target.name), True
    for workload in workloads if len(workloads) <= MOST_WORKLOADS else ():
        identity = (text(workload, "kind"), text(workload, "metadata", "name"))
        template = mapping(workload, "spec", "template")
        count = running_replicas(workload, facts)
        if identity == own or not count or not _is_whole(workload):
            continue
        pods = pods_of(template, containers(template), count, facts)
        if pods is not None and covers(quota, pods):
            taken = _sum((taken, pods.usage))
            last = last and identity < own
    return taken, last


def _sum(each: Iterable[Amounts]) -> dict[str, Decimal]:
    found: dict[str, Decimal] = {}
    for taken in each:
        for name, amount in taken.items():
            found[name] = found.get(name, _NONE) + amount
    return found
