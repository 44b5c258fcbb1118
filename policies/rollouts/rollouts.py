"""How a workload's controller replaces and counts its pods: surge, unavailability, replicas.

The arithmetic is the controllers' own, so that a rule never contradicts what the cluster does.
Values that an API server would refuse answer None.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from policies.core.facts import Facts
from policies.core.listing import Index
from policies.core.resources import Resource
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json, dig, integer, mapping, text

DEFAULT_STEP = "25%"
"""maxSurge and maxUnavailable of a Deployment where they are not given."""


@dataclass(frozen=True, slots=True)
class RollingUpdate:
    """How many pods a rolling update may add (`surge`) and take away (`unavailable`), in pods."""

    replicas: int
    surge: int
    unavailable: int


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


def replicas_of(workload: Json) -> int:
    """`spec.replicas`, which is 1 where it is not given."""
    return integer(workload, "spec", "replicas", default=1)


def is_recreate(deployment: Json) -> bool:
    """Whether the old pods are all gone before the first new one is made."""
    return text(deployment, "spec", "strategy", "type") == "Recreate"


def rolling_update(deployment: Json) -> RollingUpdate | None:
    """What a rolling update of a Deployment may do at its `spec.replicas`.

    None where there will be none: strategy Recreate, no replicas, paused, or values that make no
    sense. Surge is rounded up, unavailable down; when both come to nothing, one pod may be
    unavailable (`ResolveFenceposts` in the deployment controller's `deployment_util.go`).
    """
    replicas = replicas_of(deployment)
    if is_recreate(deployment) or replicas < 1 or dig(deployment, "spec", "paused") is True:
        return None
    steps = mapping(deployment, "spec", "strategy", "rollingUpdate")
    surge = count_of(_given(steps.get("maxSurge")), replicas, up=True)
    unavailable = count_of(_given(steps.get("maxUnavailable")), replicas, up=False)
    if surge is None or unavailable is None:
        return None
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return RollingUpdate(replicas, surge, min(unavailable, replicas))


def group_update(workload: Json) -> RollingUpdate | None:
    """What a rolling update of a LeaderWorkerSet may do at its `spec.replicas`, in groups.

    By default none is added and one may be unavailable. Surge is rounded up, unavailable down, and both are
    never more than the replicas (`rollingUpdateParameters` in LWS 0.9, leaderworkerset_controller.go).
    """
    replicas = replicas_of(workload)
    if replicas < 1:
        return None
    steps = mapping(workload, "spec", "rolloutStrategy", "rollingUpdateConfiguration")
    surge = count_of(steps.get("maxSurge", 0), replicas, up=True)
    unavailable = count_of(steps.get("maxUnavailable", 1), replicas, up=False)
    if surge is None or unavailable is None:
        return None
    return RollingUpdate(replicas, min(surge, replicas), min(unavailable, replicas))


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
    """The fewest pods a workload is scaled to: an autoscaler's `minReplicas`, else `spec.replicas`."""
    autoscaler = autoscaler_of(workload, facts)
    if autoscaler is None or replicas_of(workload) == 0:  # 0 switches the autoscaler off
        return replicas_of(workload)
    return integer(autoscaler, "spec", "minReplicas", default=1)


def running_replicas(workload: Json, facts: Facts) -> int:
    """The pods that run at the least; 0 where it is switched off."""
    return least_replicas(workload, facts) if replicas_of(workload) else 0
