"""Rolling updates and replicas, by the arithmetic of the controllers, and whether a rollout completes if only
some pods fit.

The result is None for values that an API server would refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from policies.core.facts import Facts
from policies.core.listing import Index
from policies.core.resources import Resource
from policies.core.target import PodTemplate, Target
from policies.kube.group_kinds import DAEMON_SET, DEPLOYMENT, LEADER_WORKER_SET, STATEFUL_SET, kind_of
from policies.kube.json import Json, dig, indexed_maps, integer, mapping, text

_DEFAULT_STEPS: Final[Json] = {"maxSurge": "25%", "maxUnavailable": "25%"}
"""Those of a Deployment."""


@dataclass(frozen=True, slots=True)
class RollingUpdate:
    """How many pods (of a LeaderWorkerSet: groups) a rolling update may add (`surge`) and remove
    (`unavailable`)."""

    replicas: int
    surge: int
    unavailable: int


class Outcome(Enum):
    """How a rolling update ends."""

    COMPLETES = "completes"
    STUCK = "stuck"
    """All replicas run, but a rollout cannot replace the first one."""
    SHORT = "short"
    """Not all replicas can run, with or without a rollout."""


def outcome(update: RollingUpdate, room: float) -> Outcome:
    """How a rolling update ends if at most `room` pods of both revisions together fit.

    The controller adds pods up to `replicas + surge` and removes ready old pods down to
    `replicas - unavailable` (`reconcileNewReplicaSet` and `reconcileOldReplicaSets` in the deployment
    controller's `rolling.go`). So the first new pod needs room next to all old pods, or the room of an old
    pod that may be removed. minReadySeconds and readiness only delay this. PodDisruptionBudgets do not
    apply, because controllers delete pods and do not evict them.
    """
    if room < update.replicas:
        return Outcome.SHORT
    return Outcome.STUCK if room < update.replicas - update.unavailable + 1 else Outcome.COMPLETES


def pending_replicas(replicas: int, room: float) -> str:
    """How many replicas stay Pending, as the end of a sentence."""
    left = replicas - int(room)
    return f"{left} of {replicas} replicas {'stays' if left == 1 else 'stay'} Pending"


def count_of(value: Any, total: int, *, up: bool) -> int | None:
    """An IntOrString as a number of pods: `2`, or a percentage of `total` rounded up or down.

    None for other values: the API server rejects `"2"` without a percent sign.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value >= 0 else None
    if not isinstance(value, str) or not value.endswith("%"):
        return None
    digits = value[:-1]
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 9:
        return None
    return -(-int(digits) * total // 100) if up else int(digits) * total // 100


def pods_per_replica(target: Target) -> list[tuple[PodTemplate, int]]:
    """The templates, each with its number of pods in a replica."""
    if target.kind != LEADER_WORKER_SET:
        return [(template, 1) for template in target.templates]
    size = integer(target.obj, "spec", "leaderWorkerTemplate", "size", default=1)
    is_leader = [template.path.endswith("leaderTemplate") for template in target.templates]
    counts = [1 if leader else size - any(is_leader) for leader in is_leader]
    return list(zip(target.templates, counts, strict=True))


def replicas_of(workload: Json) -> int:
    """`spec.replicas`, by default 1."""
    return integer(workload, "spec", "replicas", default=1)


def is_recreate(deployment: Json) -> bool:
    """Whether all old pods are deleted before the first new pod is created."""
    return text(deployment, "spec", "strategy", "type") == "Recreate"


def rolling_update(workload: Json, replicas: int | None = None) -> RollingUpdate | None:
    """The rolling update of a workload with `replicas`, by default its `spec.replicas`.

    None for another strategy, no replicas, a paused workload, or invalid values. A DaemonSet's update is that
    of the one pod of a node.
    """
    replicas = replicas_of(workload) if replicas is None else replicas
    update = _UPDATES.get(kind_of(workload))
    return update(workload, replicas) if update is not None and replicas >= 1 else None


def _of_deployment(deployment: Json, replicas: int) -> RollingUpdate | None:
    """Surge is rounded up, unavailable down; if both are 0, one pod may be unavailable
    (`ResolveFenceposts` in the deployment controller's `deployment_util.go`)."""
    if is_recreate(deployment) or dig(deployment, "spec", "paused") is True:
        return None
    given = mapping(deployment, "spec", "strategy", "rollingUpdate").items()
    steps = _DEFAULT_STEPS | {field: value for field, value in given if value is not None}
    surge = count_of(steps["maxSurge"], replicas, up=True)
    unavailable = count_of(steps["maxUnavailable"], replicas, up=False)
    if surge is None or unavailable is None:
        return None
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return RollingUpdate(replicas, surge, min(unavailable, replicas))


def _of_stateful_set(stateful_set: Json, replicas: int) -> RollingUpdate | None:
    """A percentage is rounded down, but not below 1, contrary to the API's comment
    (`getStatefulSetMaxUnavailable` in `stateful_set_utils.go`)."""
    if text(stateful_set, "spec", "updateStrategy", "type") == "OnDelete":
        return None
    steps = mapping(stateful_set, "spec", "updateStrategy", "rollingUpdate")
    value = steps.get("maxUnavailable")
    if value is None or integer(steps, "partition", default=0) > 0:
        return RollingUpdate(replicas, 0, 1)
    count = count_of(value, replicas, up=False)
    return None if count is None else RollingUpdate(replicas, 0, min(max(count, 1), replicas))


def _of_daemon_set(daemon_set: Json, replicas: int) -> RollingUpdate | None:
    """The update on one node: with maxSurge, the new pod is added first."""
    if text(daemon_set, "spec", "updateStrategy", "type") == "OnDelete":
        return None
    surges = mapping(daemon_set, "spec", "updateStrategy", "rollingUpdate").get("maxSurge")
    return RollingUpdate(1, 0, 1) if surges in (None, 0, "0", "0%") else RollingUpdate(1, 1, 0)


def _of_groups(workload: Json, replicas: int) -> RollingUpdate | None:
    """By default no group is added and one may be unavailable. Surge is rounded up, unavailable down, and
    both are limited to the replicas (`rollingUpdateParameters` in LWS 0.9, leaderworkerset_controller.go).
    """
    steps = mapping(workload, "spec", "rolloutStrategy", "rollingUpdateConfiguration")
    surge = count_of(steps.get("maxSurge", 0), replicas, up=True)
    unavailable = count_of(steps.get("maxUnavailable", 1), replicas, up=False)
    if (not surge and not unavailable) or surge is None or unavailable is None:
        return None
    return RollingUpdate(replicas, min(surge, replicas), min(unavailable, replicas))


_UPDATES: Final = {
    DEPLOYMENT: _of_deployment,
    STATEFUL_SET: _of_stateful_set,
    DAEMON_SET: _of_daemon_set,
    LEADER_WORKER_SET: _of_groups,
}


def autoscaler_of(workload: Json, facts: Facts) -> Json | None:
    """The HorizontalPodAutoscaler of a workload, if one is known."""
    listing = facts.listing(Resource.AUTOSCALERS)
    if not listing:
        return None
    kind = kind_of(workload).kind
    return listing.by(_BY_TARGET).one((kind, text(workload, "metadata", "name")))


def _target_of(autoscaler: Json) -> Iterator[tuple[str, str]]:
    target = mapping(autoscaler, "spec", "scaleTargetRef")
    yield text(target, "kind"), text(target, "name")


_BY_TARGET: Final = Index(_target_of)


def minimum_replicas(workload: Json, facts: Facts) -> int:
    """The minimum of a workload's autoscaler, else `spec.replicas`."""
    autoscaler = autoscaler_of(workload, facts)
    if autoscaler is None or replicas_of(workload) == 0:  # 0 switches the autoscaler off
        return replicas_of(workload)
    return autoscaler_minimum(autoscaler)


def autoscaler_minimum(autoscaler: Json) -> int:
    """The minimum replicas of an autoscaler, and 1 for the `minReplicas: 0` of Kubernetes 1.37: without pods,
    no eviction can be blocked."""
    return max(1, integer(autoscaler, "spec", "minReplicas", default=1))


def running_update(workload: Json, facts: Facts) -> RollingUpdate | None:
    """The rolling update of a workload at its minimum of replicas."""
    return rolling_update(workload, minimum_replicas(workload, facts))


def host_ports(spec: Json, container: Json) -> dict[int, int]:
    """The host ports of a container by their index; with hostNetwork, every port that it declares."""
    on_host = spec.get("hostNetwork") is True
    taken = {}
    for index, port in indexed_maps(container, "ports"):
        inside = integer(port, "containerPort", default=0) if on_host else 0
        number = integer(port, "hostPort", default=0) or inside
        if number:
            taken[index] = number
    return taken
