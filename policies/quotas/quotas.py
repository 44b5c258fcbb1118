"""The resources that a ResourceQuota counts for pods, and the number of replicas that it admits.

Semantics: `pkg/quota/v1/evaluator/core/pods.go` of Kubernetes 1.37.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import islice
from operator import attrgetter
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from policies.core.facts import Facts, WholeObjects
from policies.core.listing import Listing
from policies.core.pod_templates import pod_templates
from policies.core.pod_view import PodView
from policies.core.resources import Resource
from policies.core.runs import run_of
from policies.core.target import PodTemplate, Target
from policies.core.workloads import Workload, known_workloads
from policies.kube.group_kinds import LEADER_WORKER_SET, REPLICA_SET, SERVING
from policies.kube.json import mapping
from policies.kube.names import listed, plural
from policies.kube.objects.limits import ResourceQuota, ScopeRequirement
from policies.kube.objects.metadata import Object, Requirement
from policies.kube.objects.placement import PodAffinity
from policies.kube.objects.pods import PodSpec
from policies.kube.objects.queues import QUEUE_NAME, ClusterQueue, LocalQueue
from policies.kube.objects.reading import WrongTypeError
from policies.kube.objects.workloads import NO_STATUS, Replicated
from policies.kube.pods import Container, containers
from policies.quotas.limit_ranges import (
    NO_DEFAULTS,
    Amounts,
    ContainerResources,
    amounts,
    defaults_in,
    formatted,
    has_pod_level_resources,
    resources_of,
    total,
)
from policies.rollouts.rollouts import (
    RollingUpdate,
    minimum_of,
    minimum_replicas,
    pods_in_group,
    pods_per_replica,
    replicas_of,
    running_update,
)

REQUIRED: Final = frozenset(
    ("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")
)
"""The resources that every container must set if a quota limits them (`validationSet`)."""
_NATIVE: Final = ("cpu", "memory", "ephemeral-storage")
_LISTED: Final = (*SERVING, REPLICA_SET)
"""The kinds of `Resource.WORKLOADS`."""
REPLICATED: Final = (*_LISTED, LEADER_WORKER_SET)
MAX_WORKLOADS: Final = 500
"""Maximum number of workloads whose usage is added up."""
_GROUP: Final = 2
"""The fewest pods that wait for each other."""
_MAX_GROUPS: Final = 50
"""Maximum number of groups of one kind that each group is compared with."""


# --- pods ------------------------------------------------------------------------------------------


class Pods(Struct, frozen=True):
    """Pods with the same spec."""

    spec: PodSpec
    containers: tuple[ContainerResources, ...]
    count: int
    defaults_known: bool

    @property
    def usage(self) -> dict[str, Decimal]:
        """The resources of all of them, by the names that a quota uses; a minimum if defaults are unknown."""
        return {name: amount * self.count for name, amount in usage_of(self.containers).items()}


def pods_of(view: PodView, count: int, facts: Facts, workload: Workload | None) -> Pods | None:
    """None if their resources are unknown."""
    spec = view.typed.spec
    if has_pod_level_resources(spec):
        return None
    try:
        defaults = defaults_in(facts, workload)
        found = resources_of(view.containers, defaults or NO_DEFAULTS)
        return Pods(spec, found, count, defaults is not None)
    except ValueError:
        return None


def usage_of(containers: Sequence[ContainerResources]) -> dict[str, Decimal]:
    """The resources of one pod, by the names that a quota uses."""
    requests = total((each.container, each.requests) for each in containers)
    limits = total((each.container, each.limits) for each in containers)
    return {"pods": Decimal(1), "count/pods": Decimal(1), **_by_quota_names(requests, limits)}


def _by_quota_names(requests: Amounts, limits: Amounts) -> dict[str, Decimal]:
    found: dict[str, Decimal] = {}
    for name, amount in requests.items():
        if name in _NATIVE or name.startswith("hugepages-"):
            found[name] = found[f"requests.{name}"] = amount
        elif "/" in name:
            found[f"requests.{name}"] = amount
    return found | {f"limits.{name}": limits[name] for name in _NATIVE if name in limits}


def missing_resources(quota: ResourceQuota, pods: Pods) -> Iterator[tuple[Container, list[str]]]:
    """The containers without a resource that the quota requires, and its names; defaults may add them."""
    required = REQUIRED & quota.spec.hard.keys()
    for each in pods.containers:
        missing = sorted(required - _by_quota_names(each.requests, each.limits).keys())
        if missing:
            yield each.container, missing


# --- scopes ----------------------------------------------------------------------------------------


def covers(quota: ResourceQuota, pods: Pods) -> bool | None:
    """Whether the pods are in a quota's scopes; None if that is unknown."""
    terms = [ScopeRequirement(scope_name=scope) for scope in quota.spec.scopes]
    found = [_in_scope(term, pods) for term in (*terms, *quota.spec.scope_selector.match_expressions)]
    return False if False in found else None if None in found else True


def _in_scope(term: ScopeRequirement, pods: Pods) -> bool | None:
    match term.scope_name:
        case "Terminating":
            return _terminates(pods.spec)
        case "NotTerminating":
            return not _terminates(pods.spec)
        case "BestEffort":
            return _is_best_effort(pods)
        case "NotBestEffort":
            best_effort = _is_best_effort(pods)
            return None if best_effort is None else not best_effort
        case "PriorityClass":
            return _has_priority(pods.spec.priority_class_name, term)
        case "CrossNamespacePodAffinity":
            affinity = pods.spec.affinity
            return _selects_namespaces(affinity.pod_affinity) or _selects_namespaces(
                affinity.pod_anti_affinity
            )
    return None


def _terminates(spec: PodSpec) -> bool:
    return spec.active_deadline_seconds is not None and spec.active_deadline_seconds >= 0


def _is_best_effort(pods: Pods) -> bool | None:
    if any(
        amount
        for each in pods.containers
        for amounts in (each.requests, each.limits)
        for name, amount in amounts.items()
        if name in ("cpu", "memory")
    ):
        return False
    return True if pods.defaults_known else None


def _has_priority(name: str, term: ScopeRequirement) -> bool | None:
    """A pod without a class may get the cluster's default, which is unknown."""
    if not name:
        return None
    requirement = Requirement(key="class", operator=term.operator or "Exists", values=term.values)
    return requirement.matches({"class": name})


def _selects_namespaces(affinity: PodAffinity) -> bool:
    preferred = (each.pod_affinity_term for each in affinity.preferred)
    return any(
        term.namespaces or term.namespace_selector is not None for term in (*affinity.required, *preferred)
    )


# --- room ------------------------------------------------------------------------------------------


class Room(Struct, frozen=True):
    """How many replicas of a workload a quota admits."""

    quota: str
    resource: str
    """The resource that limits the replicas most."""
    hard: Decimal
    """The quota's limit of it."""
    used: Decimal
    """The amount that other pods use."""
    per_replica: Decimal
    match: QuotaMatch

    @property
    def replicas(self) -> Decimal:
        """How many fit; not rounded."""
        return max(Decimal(0), self.hard - self.used) / self.per_replica

    def amount(self, amount: Decimal) -> str:
        """An amount of the resource as a person writes it."""
        return formatted(self.resource, amount)

    @property
    def each(self) -> str:
        """The amount of one replica, with the part of injected containers."""
        return f"{self.amount(self.per_replica)}{self._share}"

    @property
    def _share(self) -> str:
        who, without = self.match.injected()
        part = self.per_replica - without.get(self.resource, Decimal(0))
        return f", {self.amount(part)} of it for the injected container {who}" if part else ""

    @property
    def limit(self) -> str:
        """The quota's limit of the resource: `8 requests.cpu`."""
        return f"{self.amount(self.hard)} {self.resource}"

    @property
    def text(self) -> str:
        """How many replicas fit, and why, as the start of a sentence."""
        fits = int(self.replicas)
        is_count = self.resource in ("pods", "count/pods") and self.per_replica == 1
        each = "" if is_count else f", {self.amount(self.per_replica)} each{self._share}"
        return f"ResourceQuota {self.quota} has room for {plural(fits, 'such replica')} ({self.limit}{each})"


class QuotaMatch(Struct, frozen=True):
    """A workload and one quota that counts its pods."""

    quota: ResourceQuota
    pods: tuple[Pods, ...]
    """Of one replica."""
    templates: tuple[PodTemplate, ...]
    update: RollingUpdate
    """Of a workload without rolling updates: one that replaces all pods at once."""
    usage: Amounts
    """The resources of one replica, by the names that a quota uses."""

    def room(self, used: Amounts | None = None) -> Room | None:
        """How many replicas fit if other pods use these amounts; None if the quota does not limit them.
        Raises ValueError."""
        name, used = self.quota.name, used or {}
        rooms = [
            Room(name, resource, hard, used.get(resource, Decimal(0)), self.usage[resource], self)
            for resource, hard in amounts(self.quota.spec.hard).items()
            if self.usage.get(resource)
        ]
        return min(rooms, key=lambda room: room.replicas, default=None)

    def injected(self) -> tuple[str, Amounts]:
        """The containers that the webhook adds, and the resources of one replica without them."""
        names: dict[str, None] = {}
        written = []
        for template, pods in zip(self.templates, self.pods, strict=True):
            own = {each.name for each in containers(template.unprojected)}
            added = [each.container.name for each in pods.containers if each.container.name not in own]
            names.update(dict.fromkeys(added))
            kept = tuple(each for each in pods.containers if each.container.name in own)
            written.append(replace(pods, containers=kept).usage)
        return listed(list(names)), _sum(written) if names else self.usage


def quota_matches(target: Target, facts: Facts) -> list[QuotaMatch]:
    """The quotas of a workload's namespace that certainly count its pods."""
    return target.cache.once(_quota_matches, target, facts)


def _quota_matches(target: Target, facts: Facts) -> list[QuotaMatch]:
    quotas = facts.objects(ResourceQuota)
    if not quotas or target.has_controller or _is_dispatched(target, facts):
        return []
    replicated = target.kind in REPLICATED
    replicas = minimum_replicas(target, facts) if replicated else 1
    if not replicas:
        return []
    update = running_update(target, facts) if replicated else None
    update = update or RollingUpdate(replicas, 0, replicas)
    group = {} if replicated else pods_in_group(target)
    found = [
        (template, pods_of(template.view, group.get(template.path, count), facts, template.workload))
        for template, count in pods_per_replica(target)
        if group.get(template.path, count) > 0
    ]
    matches = []
    for replica in [found] if replicated or group else [[each] for each in found]:
        known = [(template, pods) for template, pods in replica if pods is not None]
        if len(known) < len(replica):
            continue
        for quota in sorted(quotas, key=attrgetter("name")):
            covered = [(each, covers(quota, each[1])) for each in known]
            counted = [each for each, counts in covered if counts]
            if counted and all(counts is not None for _, counts in covered):
                templates, pods = zip(*counted, strict=True)
                usage = _sum(each.usage for each in pods)
                matches.append(QuotaMatch(quota, pods, templates, update, usage))
    return matches


def _is_dispatched(target: Target, facts: Facts) -> bool:
    """Whether the pods of the workload run, or may run, in other clusters, whose quotas are unknown."""
    run = run_of(target.obj)
    if run is not None and run.is_delegated:
        return True
    name = target.read(Object).metadata.labels.get(QUEUE_NAME)
    if not name:
        return False
    queues, cluster_queues = facts.objects(LocalQueue), facts.cluster_objects(ClusterQueue)
    if queues is None or cluster_queues is None:
        return True
    queue = queues.named(name)
    found = None if queue is None else cluster_queues.named(queue.spec.cluster_queue)
    return found is not None and found.is_dispatched


def in_use(quota: ResourceQuota) -> dict[str, Decimal] | None:
    """The amounts that the quota controller counted; None in a manifest. Raises ValueError."""
    used = quota.status.used
    return None if used is None else amounts(used)


def is_running(target: Target, quota: ResourceQuota, facts: Facts) -> bool | None:
    """Whether the quota controller has counted pods of the workload; None if that is unknown, as for a
    manifest without a status: then its own pods may be those in use.

    Workloads from the cluster are cached without their containers; those from manifests have them.
    """
    unknown = None if quota.is_manifest or target.read(Object).metadata.resource_version else False
    workloads = facts.objects(Replicated)
    if target.kind not in _LISTED or workloads is None:
        return unknown
    found = [
        _has_pods(each, unknown)
        for each in workloads.all_named(target.name)
        if each.kind == target.kind.kind and replicas_of(each) > 0
    ]
    return True if True in found else None if None in found else False


def _has_pods(workload: Replicated, unknown: bool | None) -> bool | None:
    status = workload.status
    if status.replicas or status.ready_replicas:
        return True
    return (unknown if status == NO_STATUS else False) if _has_containers(workload) else True


def _has_containers(workload: Replicated) -> bool:
    return bool(workload.spec.template.spec.containers)


def used_by_other_manifests(
    target: Target, quota: ResourceQuota, facts: Facts
) -> tuple[dict[str, Decimal], bool]:
    """The amounts that the other workloads of the manifests use at least, and whether this one is the last
    of them by kind and name."""
    workloads = facts.objects(Replicated)
    if workloads is None or len(workloads) > MAX_WORKLOADS:
        return {}, True
    counted = workloads.listing.derive(_Manifests).counted_by(quota, facts)
    own = target.kind.kind, target.name
    ours = counted.by_workload.get(own, {})
    others = {name: amount - ours.get(name, 0) for name, amount in counted.total.items()}
    return {name: amount for name, amount in others.items() if amount}, counted.last <= own


_Identity: TypeAlias = tuple[str, str]
"""Kind and name of a workload."""


class _Counted(Struct, frozen=True):
    """What a quota counts of the pods of workloads."""

    by_workload: dict[_Identity, Amounts]
    total: Amounts
    last: _Identity
    """The last workload by kind and name."""


class _Manifests:
    """The pods of the workloads of a listing, read once for all reviews and quotas."""

    def __init__(self, listing: Listing) -> None:
        self._workloads = listing.objects(Replicated)
        self._read_with: tuple[Listing | None, ...] = ()
        self._pods: list[tuple[_Identity, Pods]] = []
        self._counted: dict[int, tuple[ResourceQuota, _Counted]] = {}

    def counted_by(self, quota: ResourceQuota, facts: Facts) -> _Counted:
        """What the pods of each workload use that the quota counts."""
        others = facts.listing(Resource.LIMIT_RANGES), facts.listing(Resource.AUTOSCALERS)
        if others != self._read_with:
            self._read_with, self._pods, self._counted = others, list(self._read(facts)), {}
        if id(quota) not in self._counted:  # the quota is kept, so that no other one gets the same id
            found: dict[_Identity, Amounts] = {}
            for identity, pods in self._pods:
                usage = pods.usage if covers(quota, pods) else {}
                found[identity] = _least(found.get(identity, usage), usage)
            found = {identity: usage for identity, usage in found.items() if usage}
            self._counted[id(quota)] = (
                quota,
                _Counted(found, _sum(found.values()), max(found, default=("", ""))),
            )
        return self._counted[id(quota)][1]

    def _read(self, facts: Facts) -> Iterator[tuple[_Identity, Pods]]:
        for obj, workload in zip(self._workloads.listing, self._workloads, strict=True):
            count = minimum_of(workload, facts)
            if count and _has_containers(workload):
                pods = pods_of(PodView(mapping(obj, "spec", "template")), count, facts, None)
                if pods is not None:
                    yield (workload.kind, workload.name), pods


def _least(one: Amounts, other: Amounts) -> Amounts:
    """What each of two versions of a workload uses, of which one is applied."""
    return {name: min(amount, other[name]) for name, amount in one.items() if name in other}


class _OfGroups(Struct, frozen=True):
    """What a quota counts of groups whose pods wait for each other."""

    quota: ResourceQuota
    """Kept, so that no other quota gets the same id."""
    used: dict[str, Amounts]
    """By the kind and name of a group."""
    most: Amounts
    """The greatest amount of each resource."""


def group_without_room(target: Target, match: QuotaMatch, facts: Facts) -> tuple[str, Room] | None:
    """Another group among the manifests, earlier by kind and name, next to which the quota has no room for
    this one. Groups that a person or a queue starts later are none. Raises ValueError."""
    if facts.whole is None:
        return None
    key = (facts.namespace, id(match.quota))
    groups = facts.whole.cache.once_for(key, _used_by_groups, match.quota, facts.whole, facts)
    own = f"{target.kind.kind} {target.name}"
    for who, usage in groups.used.items() if _is_full(match.room(groups.most)) else ():
        room = match.room(usage) if who < own else None
        if room is not None and _is_full(room):
            return who, room
    return None


def _is_full(room: Room | None) -> bool:
    return room is not None and room.replicas < 1


def _used_by_groups(quota: ResourceQuota, cluster: WholeObjects, facts: Facts) -> _OfGroups:
    """A group of which the quota counts only a part of the pods is left out."""
    used: dict[str, Amounts] = {}
    most: dict[str, Decimal] = {}
    for who, pods in cluster.cache.once_for(facts.namespace, _groups, cluster, facts).items():
        if all(each is not None and covers(quota, each) for each in pods):
            used[who] = _sum(each.usage for each in pods if each is not None)
            most |= {name: max(amount, most.get(name, amount)) for name, amount in used[who].items()}
    return _OfGroups(quota, used, most)


def _groups(cluster: WholeObjects, facts: Facts) -> dict[str, list[Pods | None]]:
    """The pods of the groups of a namespace that start at once, read once for all reviews and quotas."""
    found: dict[str, list[Pods | None]] = {}
    for workload in (each for each in known_workloads() if each.group):
        for obj in islice(cluster.every(workload.group_kind, facts.namespace), _MAX_GROUPS):
            group = Target(obj, workload.group_kind, pod_templates(obj, {workload.group_kind: workload}))
            try:
                pods = _pods_of_group(group, facts)
            except WrongTypeError:
                continue  # its own review says so
            if pods:
                found[f"{group.kind.kind} {group.name}"] = pods
    return found


def _pods_of_group(group: Target, facts: Facts) -> list[Pods | None]:
    run = run_of(group.obj)
    if run is None or not run.creates_pods:
        return []
    counts = pods_in_group(group)
    if sum(counts.values()) < _GROUP:
        return []
    return [pods_of(each.view, counts.get(each.path, 0), facts, each.workload) for each in group.templates]


def _sum(usages: Iterable[Amounts]) -> dict[str, Decimal]:
    found = defaultdict[str, Decimal](Decimal)
    for usage in usages:
        for name, amount in usage.items():
            found[name] += amount
    return found
