"""How a workload's controller replaces and counts its pods: surge, unavailability, replicas, and whether a
rollout completes where there is room for only so many pods.

The arithmetic is the controllers' own, so that a rule never contradicts what the cluster does.
Values that an API server would refuse answer None.
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

DEFAULT_STEP = "25%"
"""maxSurge and maxUnavailable of a Deployment where they are not given."""


@dataclass(frozen=True, slots=True)
class RollingUpdate:
    """How many pods a rolling update may add (`surge`) and take away (`unavailable`), in pods; for a
    LeaderWorkerSet in groups."""

    replicas: int
    surge: int
    unavailable: int


class Outcome(Enum):
    """How a rolling update ends."""

    COMPLETES = "completes"
    STUCK = "stuck"
    """All replicas run, but a rollout never replaces the first one."""
    SHORT = "short"
    """Fewer pods than replicas can ever run, with or without a rollout."""


def outcome(update: RollingUpdate, room: float) -> Outcome:
    """How a rolling update ends if `room` pods of both revisions together can be ready at once.

    The controller adds pods up to `replicas + surge` and removes ready old ones down to
    `replicas - unavailable` (`reconcileNewReplicaSet` and `reconcileOldReplicaSets` in the deployment
    controller's `rolling.go`). Old pods take the room first. So the first new pod needs a place that is free
    while all old pods run, or one that an old pod may leave. minReadySeconds and readiness only delay this.
    A PodDisruptionBudget does not count: controllers delete pods and do not evict them.
    """
    if room < update.replicas:
        return Outcome.SHORT
    return Outcome.STUCK if room < update.replicas - update.unavailable + 1 else Outcome.COMPLETES


def pending_replicas(replicas: int, room: float) -> str:
    """How many replicas never run, as the end of a sentence."""
    left = replicas - int(room)
    return f"{left} of {replicas} replicas {'stays' if left == 1 else 'stay'} Pending"


def count_of(value: Any, total: int, *, up: bool) -> int | None:
    """An IntOrString as a number of pods: `2`, or a percentage of `total` rounded up or down.

    None where it is neither. `"2"` without the percent sign is no percentage to the API server.
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
    """The templates with how many pods of each a replica has."""
    if target.kind != LEADER_WORKER_SET:
        return [(template, 1) for template in target.templates]
    size = integer(target.obj, "spec", "leaderWorkerTemplate", "size", default=1)
    leads = any(template.path.endswith("leaderTemplate") for template in target.templates)
    return [
        (template, 1 if template.path.endswith("leaderTemplate") else size - leads)
        for template in target.templates
    ]


def replicas_of(workload: Json) -> int:
    """`spec.replicas`, which is 1 where it is not given."""
    return integer(workload, "spec", "replicas", default=1)


def is_recreate(deployment: Json) -> bool:
    """Whether the old pods are all gone before the first new one is made."""
    return text(deployment, "spec", "strategy", "type") == "Recreate"


def rolling_update(workload: Json, replicas: int | None = None) -> RollingUpdate | None:
    """What a rolling update of a workload may do at so many replicas, by default its `spec.replicas`.

    None where there will be none: another strategy, no replicas, paused, or values that make no sense.
    A DaemonSet is one pod on each node, so its update is that of one replica.
    """
    replicas = replicas_of(workload) if replicas is None else replicas
    update = _UPDATES.get(kind_of(workload))
    return update(workload, replicas) if update is not None and replicas >= 1 else None


def _of_deployment(deployment: Json, replicas: int) -> RollingUpdate | None:
    """Surge is rounded up, unavailable down; when both come to nothing, one pod may be
    unavailable (`ResolveFenceposts` in the deployment controller's `deployment_util.go`)."""
    if is_recreate(deployment) or dig(deployment, "spec", "paused") is True:
        return None
    steps = mapping(deployment, "spec", "strategy", "rollingUpdate")
    surge = count_of(_given(steps.get("maxSurge")), replicas, up=True)
    unavailable = count_of(_given(steps.get("maxUnavailable")), replicas, up=False)
    if surge is None or unavailable is None:
        return None
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return RollingUpdate(replicas, surge, min(unavailable, replicas))


def _of_stateful_set(stateful_set: Json, replicas: int) -> RollingUpdate | None:
    """A percentage is rounded down, to 1 at the least, contrary to the API's comment
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
    """The update on one node: it adds a pod first if any surge is given."""
    if text(daemon_set, "spec", "updateStrategy", "type") == "OnDelete":
        return None
    surges = mapping(daemon_set, "spec", "updateStrategy", "rollingUpdate").get("maxSurge")
    return RollingUpdate(1, 0, 1) if surges in (None, 0, "0", "0%") else RollingUpdate(1, 1, 0)


def _of_groups(workload: Json, replicas: int) -> RollingUpdate | None:
    """By default no group is added and one may be unavailable. Surge is rounded up, unavailable down, and
    both are never more than the replicas (`rollingUpdateParameters` in LWS 0.9,
    leaderworkerset_controller.go)."""
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


def _given(value: Any) -> Any:
    return DEFAULT_STEP if value is None else value


def autoscaler_of(workload: Json, facts: Facts) -> Json | None:
    """The HorizontalPodAutoscaler that scales a workload; None when there is none or none is known."""
    listing = facts.listing(Resource.AUTOSCALERS)
    if not listing:
        return None
    kind = kind_of(workload).kind
    return listing.by(_BY_TARGET).one((kind, text(workload, "metadata", "name")))


def _target_of(autoscaler: Json) -> Iterator[tuple[str, str]]:
    target = mapping(autoscaler, "spec", "scaleTargetRef")
    yield text(target, "kind"), text(target, "name")


_BY_TARGET: Final = Index(_target_of)


def least_replicas(workload: Json, facts: Facts) -> int:
    """The fewest pods a workload is scaled to: what its autoscaler keeps, else `spec.replicas`."""
    autoscaler = autoscaler_of(workload, facts)
    if autoscaler is None or replicas_of(workload) == 0:  # 0 switches the autoscaler off
        return replicas_of(workload)
    return autoscaler_minimum(autoscaler)


def autoscaler_minimum(autoscaler: Json) -> int:
    """The fewest pods that run under an autoscaler. With `minReplicas: 0`, which Kubernetes 1.37 allows, it
    is one: while none runs, nothing can be blocked or lost."""
    return max(1, integer(autoscaler, "spec", "minReplicas", default=1))


def running_replicas(workload: Json, facts: Facts) -> int:
    """The pods that run at the least; 0 where it is switched off."""
    return least_replicas(workload, facts) if replicas_of(workload) else 0


def running_update(workload: Json, facts: Facts) -> RollingUpdate | None:
    """What a rolling update may do while the fewest pods run."""
    return rolling_update(workload, running_replicas(workload, facts))


def host_ports(spec: Json, container: Json) -> dict[int, int]:
    """The ports of the node that a container of a pod takes, by their index; under hostNetwork that is each
    port it declares."""
    on_host = spec.get("hostNetwork") is True
    taken = {}
    for index, port in indexed_maps(container, "ports"):
        inside = integer(port, "containerPort", default=0) if on_host else 0
        number = integer(port, "hostPort", default=0) or inside
        if number:
            taken[index] = number
    return taken
