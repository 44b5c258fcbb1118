from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from policies.core.facts import Facts
from policies.core.listing import Listing
from policies.core.resources import Resource
from policies.core.target import Target
from policies.kube.group_kinds import DEPLOYMENT
from policies.kube.json import Json
from policies.rollouts import rollouts
from policies.rollouts.rollouts import RollingUpdate


class OneListing:
    """A cluster of which only the autoscalers are known."""

    def __init__(self, items: Iterable[Json]) -> None:
        self._listing = Listing(items)

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        return self._listing if resource is Resource.AUTOSCALERS else None


def deployment(**spec: Any) -> Target:
    obj = {"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "server"}, "spec": spec}
    return Target(obj, DEPLOYMENT)


def rolling(replicas: Any, surge: Any = None, unavailable: Any = None) -> RollingUpdate | None:
    steps = {"maxSurge": surge, "maxUnavailable": unavailable}
    return updated(replicas=replicas, strategy={"rollingUpdate": steps})


def updated(**spec: Any) -> RollingUpdate | None:
    target = deployment(**spec)
    return rollouts.rolling_update(target, target.replicas)


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "expected"),
    [
        (None, None, None, RollingUpdate(1, 1, 0)),
        (3, None, None, RollingUpdate(3, 1, 0)),
        (4, None, None, RollingUpdate(4, 1, 1)),
        (5, "50%", "50%", RollingUpdate(5, 3, 2)),
        (1, 0, None, RollingUpdate(1, 0, 1)),  # both come to nothing
        (1, "0%", "99%", RollingUpdate(1, 0, 1)),
        (2, 1, 5, RollingUpdate(2, 1, 2)),
        (2, "100%", "0%", RollingUpdate(2, 2, 0)),
        (2, "1", 0, None),  # not a percentage: the API server refuses it
        (2, -1, 0, None),
        (0, 1, 0, None),
    ],
)
def test_fenceposts(replicas: Any, surge: Any, unavailable: Any, expected: RollingUpdate | None) -> None:
    assert rolling(replicas, surge, unavailable) == expected


def test_a_deployment_without_a_strategy_rolls_by_a_quarter() -> None:
    assert updated() == RollingUpdate(1, 1, 0)


def test_no_rolling_update_when_recreated_or_paused() -> None:
    assert updated(strategy={"type": "Recreate"}) is None
    assert updated(paused=True) is None
    assert updated(paused=None) is not None


def autoscaled(least: int | None, *, name: str = "server", kind: str = "Deployment") -> Facts:
    spec: Json = {"scaleTargetRef": {"kind": kind, "name": name}, "maxReplicas": 9}
    if least is not None:
        spec["minReplicas"] = least
    return Facts(cluster=OneListing([{"metadata": {"name": "a"}, "spec": spec}]))


def test_least_replicas_are_the_autoscalers() -> None:
    assert rollouts.minimum_replicas(deployment(replicas=5), autoscaled(2)) == 2
    assert rollouts.minimum_replicas(deployment(replicas=5), autoscaled(None)) == 1
    assert rollouts.minimum_replicas(deployment(), autoscaled(3)) == 3


def test_an_autoscaler_of_something_else_does_not_count() -> None:
    assert rollouts.minimum_replicas(deployment(replicas=5), autoscaled(2, name="other")) == 5
    assert rollouts.minimum_replicas(deployment(replicas=5), autoscaled(2, kind="StatefulSet")) == 5
    assert rollouts.minimum_replicas(deployment(replicas=5), Facts()) == 5


def test_zero_replicas_switch_the_autoscaler_off() -> None:
    assert rollouts.minimum_replicas(deployment(replicas=0), autoscaled(2)) == 0
