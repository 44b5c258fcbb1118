"""ResourceQuotas and LimitRanges: the API server's own admission stops the rollouts and pods that the rules
report, and lets the sound twins run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.api import JSON, Api, ApiError
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.status import has_condition, rolled_out
from tests.e2e.workloads import container, workload
from tests.manifests import manifest

pytestmark = pytest.mark.e2e

ROOM_FIRST: JSON = {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}
POOL = {"pool": "quotas"}


@pytest.fixture(scope="module")
def node(control_plane: ControlPlane) -> Iterator[str]:
    """One node for all pods of this module."""
    control_plane.add_node("quotas", POOL)
    yield "quotas"
    control_plane.api.delete("nodes", "quotas")


def deployment(replicas: int, resources: JSON, *, exempt: str = "", **spec: Any) -> JSON:
    main = container("registry.example/api:1", None, resources=resources)
    made = workload("Deployment", "api", main, replicas=replicas, pod={"nodeSelector": POOL}, **spec)
    made["metadata"]["annotations"] = (
        {"mlchassis.dev/exempt": f"{exempt}=shows that the hazard is real"} if exempt else {}
    )
    return made


def add(api: Api, kind: str, spec: JSON) -> None:
    api.create(manifest(kind, "team", spec))
    if kind == "ResourceQuota":
        api.wait("resourcequotas", "team", lambda it: "used" in it.get("status", {}))


def judged(api: Api, item: JSON) -> str:
    """What the webhook answers: its refusal, or its warnings."""
    try:
        return api.warnings(item)
    except ApiError as refusal:
        return f"refused: {refusal.message}"


@pytest.mark.parametrize(
    "hard",
    [{"pods": "2"}, {"requests.cpu": "1500m"}, {"limits.memory": "5Gi"}],
    ids=lambda hard: next(iter(hard)),
)
def test_a_rollout_above_a_full_quota_is_refused_and_never_completes(
    api: Api, chassis: Chassis, node: str, hard: JSON
) -> None:
    size = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}}
    if "requests.cpu" in hard:
        size["requests"]["cpu"] = "700m"
    add(api, "ResourceQuota", {"hard": hard})
    rule = "rollout-quota-deadlock"
    bad, sound = deployment(2, size), deployment(2, size, **ROOM_FIRST)
    chassis.process.wait_until(lambda: rule in judged(api, bad))
    assert judged(api, bad).startswith("refused")
    assert rule not in judged(api, sound)

    api.create(deployment(2, size, exempt=rule))
    api.wait("deployments", "api", rolled_out)
    change = {"spec": {"template": {"metadata": {"labels": {"version": "2"}}}}}
    api.patch("deployments", "api", change)
    stuck = api.wait("deployments", "api", has_condition("ReplicaFailure", says="exceeded quota"))
    assert stuck["status"]["availableReplicas"] == 2
    assert not stuck["status"].get("updatedReplicas")
    api.patch("deployments", "api", {"spec": ROOM_FIRST})
    api.wait("deployments", "api", rolled_out)


def test_others_that_fill_the_quota_are_a_warning(
    api: Api, control_plane: ControlPlane, chassis: Chassis, namespace: str, node: str
) -> None:
    add(api, "ResourceQuota", {"hard": {"pods": "3"}})
    other = workload("Deployment", "other", container("registry.example/api:1", None), replicas=2)
    other["spec"]["template"]["spec"]["nodeSelector"] = POOL
    api.create(other)
    api.wait("deployments", "other", rolled_out)

    chassis.process.wait_until(lambda: "use 2 of the 3 pods" in judged(api, deployment(2, {})))
    assert not judged(api, deployment(2, {})).startswith("refused")
    assert "quota" not in judged(api, deployment(1, {}))
    api.create(deployment(1, {}))
    api.wait("deployments", "api", rolled_out)

    def warned() -> bool:
        change = {"metadata": {"labels": {"looked": "at"}}, "spec": {"minReadySeconds": 1}}
        path = api.resource("deployments").path(namespace, "api") + "?dryRun=All"
        answer = control_plane.api.request("PATCH", path, change, content_type="application/merge-patch+json")
        return any("3 of 3 pods" in each for each in answer.warnings)

    chassis.process.wait_until(warned)
    change = {"spec": {"template": {"metadata": {"labels": {"version": "2"}}}}}
    api.patch("deployments", "api", change)
    api.wait("deployments", "api", has_condition("ReplicaFailure", says="exceeded quota"))
    api.patch("deployments", "api", {"spec": ROOM_FIRST})
    api.wait("deployments", "api", rolled_out)


@pytest.mark.parametrize("scope", ["BestEffort", "NotBestEffort", "Terminating", "NotTerminating"])
def test_the_quota_counts_what_the_rule_says_it_counts(
    api: Api, chassis: Chassis, node: str, scope: str
) -> None:
    add(api, "ResourceQuota", {"hard": {"pods": "1"}, "scopes": [scope]})
    add(api, "LimitRange", {"limits": [{"type": "Pod", "max": {"cpu": "64"}}]})
    full = {"limits": {"cpu": "100m"}}
    counted = scope in ("NotBestEffort", "NotTerminating")
    if counted:
        chassis.process.wait_until(lambda: "quota-exceeded" in judged(api, deployment(2, full)))
    else:
        assert "quota" not in judged(api, deployment(2, full))
    api.create(deployment(2, full, exempt="quota-exceeded"))
    if counted:
        api.wait("deployments", "api", has_condition("ReplicaFailure", says="exceeded quota"))
    else:
        api.wait("deployments", "api", rolled_out)


@pytest.mark.parametrize(
    ("item", "bad", "good", "why"),
    [
        (
            {"type": "Container", "max": {"memory": "2Gi"}},
            {"limits": {"memory": "4Gi"}},
            {"limits": {"memory": "2Gi"}},
            "maximum memory usage per Container",
        ),
        (
            {"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}},
            {"requests": {"cpu": "100m"}, "limits": {"cpu": "300m"}},
            {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}},
            "ratio",
        ),
        (
            {"type": "Container", "default": {"memory": "512Mi"}},
            {"requests": {"memory": "8Gi"}},
            {"requests": {"memory": "8Gi"}, "limits": {"memory": "8Gi"}},
            "must be less than or equal to memory limit",
        ),
        (
            {"type": "Container", "min": {"cpu": "100m"}},
            {"requests": {"cpu": "50m"}},
            {"requests": {"cpu": "100m"}},
            "minimum cpu usage per Container",
        ),
        (
            {"type": "Pod", "max": {"cpu": "1"}},
            {"limits": {"cpu": "2"}},
            {"limits": {"cpu": "1"}},
            "maximum cpu usage per Pod",
        ),
    ],
    ids=["max", "ratio", "default", "min", "pod"],
)
def test_a_limit_range_refuses_the_pods_that_the_rule_refuses(
    api: Api, chassis: Chassis, node: str, item: JSON, bad: JSON, good: JSON, why: str
) -> None:
    add(api, "LimitRange", {"limits": [item]})
    rule = "limit-range-conflict"
    chassis.process.wait_until(lambda: rule in judged(api, deployment(1, bad)))
    assert judged(api, deployment(1, bad)).startswith("refused")
    assert rule not in judged(api, deployment(1, good))
    api.create(deployment(1, bad, exempt=rule))
    api.wait("deployments", "api", has_condition("ReplicaFailure", says=why))
    api.delete("deployments", "api")
    api.wait_for("deployments", lambda found: not found)
    api.create(deployment(1, good))
    api.wait("deployments", "api", rolled_out)
