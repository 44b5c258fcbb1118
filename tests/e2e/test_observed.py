"""Starts of pods are recorded by the webhook with its own rights, and startup budgets follow from them."""

from __future__ import annotations

import json

import pytest

import webhook.cli.main as cli
from policies.probes.liveness_program import watched_start
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
    """Seconds that a start may last: of the startupProbe, or of the livenessProbe that watches it."""
    main = of["spec"]["containers"][0]
    if "startupProbe" not in main:
        return watched_start(main["livenessProbe"])
    return int(main["startupProbe"]["periodSeconds"] * main["startupProbe"]["failureThreshold"])


def test_a_budget_follows_from_observed_starts(
    control_plane: ControlPlane,
    chassis: Chassis,
    namespace: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Slow: the record is written once a minute."""
    chassis.process.wait_until(lambda: "observing starts" in chassis.log.read_text())
    first = control_plane.api.create(pod("before", server()), namespace=namespace)
    assert budget(first.body) > 3 * 3600
    control_plane.apply(workload("Deployment", "llm", server(), replicas=6), "-n", namespace)

    def learned(observed: JSON) -> bool:
        entries = json.loads(observed["data"].get(namespace, "{}"))
        return any(
            key.startswith("Deployment/llm/main@") and each.get("fresh") == 6 for key, each in entries.items()
        )

    found = control_plane.api.wait("configmaps", OBSERVED, learned, namespace=NAMESPACE, timeout=180)
    assert "kube-system" not in found["data"]

    [owned, *_] = control_plane.api.wait_for("pods", bool, labels="app=llm", namespace=namespace)

    def created(**metadata: JSON) -> JSON:
        made = pod("after", server())
        made["metadata"] |= metadata
        return control_plane.api.create(made, namespace=namespace, dry_run=True).body

    def next_replica() -> JSON:
        return created(**{key: owned["metadata"][key] for key in ("labels", "ownerReferences")})

    chassis.process.wait_until(lambda: budget(next_replica()) == 600)
    assert "observed starts" in next_replica()["metadata"]["annotations"]["mlchassis.dev/changed"]
    assert budget(created()) > 3 * 3600, "another workload's starts shorten nothing"

    # The Deployment's pods keep the estimate, so a hang would last for hours: chassis tune says so.
    tune = ["tune", "--kubeconfig", str(control_plane.kubeconfig), "-n", namespace, "-o", "json"]
    capsys.readouterr()
    assert cli.main(tune) == 0
    tuned = {row["workload"]: row for row in json.loads(capsys.readouterr().out)}["Deployment/llm"]
    assert [verdict.partition(" last ")[0] for verdict in tuned["verdicts"]] == ["a hung start would"]
    assert tuned["observed"]["starts"] == 6
    assert tuned["annotation"] == {"mlchassis.dev/expected-start.main": "200s"}
