"""ResourceQuotas and LimitRanges: the API server's own admission stops the rollouts and pods that the rules
report, and lets the sound twins run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.api import JSON, ApiError
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
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
    main = {"name": "api", "image": "registry.example/api:1", "resources": resources}
    template = {
        "metadata": {"labels": {"app": "api"}},
        "spec": {"containers": [main], "nodeSelector": POOL},
    }
    annotations = {"mlchassis.dev/exempt": f"{exempt}=shows that the hazard is real"} if exempt else {}
    return manifest(
        "Deployment",
        "api",
        {"replicas": replicas, "selector": {"matchLabels": {"app": "api"}}, "template": template, **spec},
        annotations=annotations,
    )


def add(control_plane: ControlPlane, namespace: str, kind: str, spec: JSON) -> None:
    item = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "team"}, "spec": spec}
    control_plane.api.create(item, namespace)
    if kind == "ResourceQuota":
        control_plane.wait(
            "resourcequotas", "team", lambda it: "used" in it.get("status", {}), namespace=namespace
        )


def judged(control_plane: ControlPlane, item: JSON, namespace: str) -> str:
    """What the webhook answers: its refusal, or its warnings."""
    try:
        return " ".join(control_plane.api.create(item, namespace, dry_run=True).warnings)
    except ApiError as refusal:
        return f"refused: {refusal.message}"


def available(count: int, *, updated: int | None = None) -> Any:
    def found(it: JSON) -> bool:
        status = it["status"]
        return bool(
            status.get("availableReplicas", 0) == count
            and status.get("observedGeneration") == it["metadata"]["generation"]
            and (updated is None or status.get("updatedReplicas", 0) == updated)
        )

    return found


def fails_with(text: str) -> Any:
    """Whether the controller can't create pods, for this reason."""

    def found(it: JSON) -> bool:
        conditions = it["status"].get("conditions", ())
        return any(each["type"] == "ReplicaFailure" and text in each["message"] for each in conditions)

    return found


@pytest.mark.parametrize(
    "hard",
    [{"pods": "2"}, {"requests.cpu": "1500m"}, {"limits.memory": "5Gi"}],
    ids=lambda hard: next(iter(hard)),
)
def test_a_rollout_above_a_full_quota_is_refused_and_never_completes(
    control_plane: ControlPlane, chassis: Chassis, namespace: str, node: str, hard: JSON
) -> None:
    size = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}}
    if "requests.cpu" in hard:
        size["requests"]["cpu"] = "700m"
    add(control_plane, namespace, "ResourceQuota", {"hard": hard})
    rule = "rollout-quota-deadlock"
    bad, sound = deployment(2, size), deployment(2, size, **ROOM_FIRST)
    chassis.process.wait_until(lambda: rule in judged(control_plane, bad, namespace), 60)
    assert judged(control_plane, bad, namespace).startswith("refused")
    assert rule not in judged(control_plane, sound, namespace)

    control_plane.api.create(deployment(2, size, exempt=rule), namespace)
    control_plane.wait("deployments", "api", available(2), namespace=namespace, timeout=90)
    change = {"spec": {"template": {"metadata": {"labels": {"version": "2"}}}}}
    control_plane.api.patch("deployments", "api", change, namespace)
    stuck = control_plane.wait(
        "deployments", "api", fails_with("exceeded quota"), namespace=namespace, timeout=60
    )
    assert stuck["status"]["availableReplicas"] == 2
    assert not stuck["status"].get("updatedReplicas")
    control_plane.api.patch("deployments", "api", {"spec": ROOM_FIRST}, namespace)
    control_plane.wait("deployments", "api", available(2, updated=2), namespace=namespace, timeout=90)


def test_others_that_fill_the_quota_are_a_warning(
    control_plane: ControlPlane, chassis: Chassis, namespace: str, node: str
) -> None:
    add(control_plane, namespace, "ResourceQuota", {"hard": {"pods": "3"}})
    other = deployment(2, {})
    other["metadata"]["name"] = other["spec"]["template"]["metadata"]["labels"]["app"] = "other"
    other["spec"]["selector"]["matchLabels"]["app"] = "other"
    control_plane.api.create(other, namespace)
    control_plane.wait("deployments", "other", available(2), namespace=namespace, timeout=90)

    chassis.process.wait_until(
        lambda: "use 2 of the 3 pods" in judged(control_plane, deployment(2, {}), namespace), 30
    )
    assert not judged(control_plane, deployment(2, {}), namespace).startswith("refused")
    assert "quota" not in judged(control_plane, deployment(1, {}), namespace)
    control_plane.api.create(deployment(1, {}), namespace)
    control_plane.wait("deployments", "api", available(1), namespace=namespace, timeout=90)

    def warned() -> bool:
        change = {"metadata": {"labels": {"looked": "at"}}, "spec": {"minReadySeconds": 1}}
        path = control_plane.api.resource("deployments").path(namespace, "api") + "?dryRun=All"
        answer = control_plane.api.request("PATCH", path, change, content_type="application/merge-patch+json")
        return any("3 of 3 pods" in each for each in answer.warnings)

    chassis.process.wait_until(warned, 60)
    change = {"spec": {"template": {"metadata": {"labels": {"version": "2"}}}}}
    control_plane.api.patch("deployments", "api", change, namespace)
    control_plane.wait("deployments", "api", fails_with("exceeded quota"), namespace=namespace, timeout=60)
    control_plane.api.patch("deployments", "api", {"spec": ROOM_FIRST}, namespace)
    control_plane.wait("deployments", "api", available(1, updated=1), namespace=namespace, timeout=90)


@pytest.mark.parametrize("scope", ["BestEffort", "NotBestEffort", "Terminating", "NotTerminating"])
def test_the_quota_counts_what_the_rule_says_it_counts(
    control_plane: ControlPlane, chassis: Chassis, namespace: str, node: str, scope: str
) -> None:
    add(control_plane, namespace, "ResourceQuota", {"hard": {"pods": "1"}, "scopes": [scope]})
    add(control_plane, namespace, "LimitRange", {"limits": [{"type": "Pod", "max": {"cpu": "64"}}]})
    full = {"limits": {"cpu": "100m"}}
    counted = scope in ("NotBestEffort", "NotTerminating")
    if counted:
        chassis.process.wait_until(
            lambda: "quota-exceeded" in judged(control_plane, deployment(2, full), namespace), 30
        )
    else:
        assert "quota" not in judged(control_plane, deployment(2, full), namespace)
    control_plane.api.create(deployment(2, full, exempt="quota-exceeded"), namespace)
    if counted:
        control_plane.wait(
            "deployments", "api", fails_with("exceeded quota"), namespace=namespace, timeout=60
        )
    else:
        control_plane.wait("deployments", "api", available(2), namespace=namespace, timeout=90)


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
    control_plane: ControlPlane,
    chassis: Chassis,
    namespace: str,
    node: str,
    item: JSON,
    bad: JSON,
    good: JSON,
    why: str,
) -> None:
    add(control_plane, namespace, "LimitRange", {"limits": [item]})
    rule = "limit-range-conflict"
    chassis.process.wait_until(lambda: rule in judged(control_plane, deployment(1, bad), namespace), 60)
    assert judged(control_plane, deployment(1, bad), namespace).startswith("refused")
    assert rule not in judged(control_plane, deployment(1, good), namespace)
    control_plane.api.create(deployment(1, bad, exempt=rule), namespace)
    control_plane.wait("deployments", "api", fails_with(why), namespace=namespace, timeout=60)
    control_plane.api.delete("deployments", "api", namespace)
    control_plane.api.wait_for("deployments", lambda found: not found, namespace=namespace, timeout=60)
    control_plane.api.create(deployment(1, good), namespace)
    control_plane.wait("deployments", "api", available(1), namespace=namespace, timeout=90)
