"""Starts of pods are recorded by the webhook with its own rights, and startup budgets follow from them."""

from __future__ import annotations

import json

import pytest

from tests.e2e.api import JSON
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import NAMESPACE, Chassis
from tests.e2e.workloads import container, pod, workload

pytestmark = pytest.mark.e2e

OBSERVED = "mlchassis-observed"
MODEL = "meta-llama/Llama-3.1-70B-Instruct"


def server() -> JSON:
    return container(args=[MODEL])


def budget(of: JSON) -> int:
    probe = of["spec"]["containers"][0]["startupProbe"]
    return int(probe["periodSeconds"] * probe["failureThreshold"])


def test_a_budget_follows_from_observed_starts(
    control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    """Slow: the record is written once a minute."""
    first = control_plane.api.create(pod("before", server()), namespace=namespace)
    assert budget(first.body) > 3 * 3600
    control_plane.apply(workload("Deployment", "llm", server(), replicas=6), "-n", namespace)

    def learned(observed: JSON) -> bool:
        entries = json.loads(observed["data"].get(namespace, "{}"))
        return any(
            key.startswith("Deployment/llm/main@") and each.get("fresh") == 6 for key, each in entries.items()
        )

    found = control_plane.wait("configmaps", OBSERVED, learned, namespace=NAMESPACE, timeout=180)
    assert "kube-system" not in found["data"]

    def created(name: str) -> JSON:
        return control_plane.api.create(pod(name, server()), namespace=namespace, dry_run=True).body

    chassis.process.wait_until(lambda: budget(created("after")) == 600, 30)
    assert "observed starts" in created("after")["metadata"]["annotations"]["mlchassis.dev/changed"]
