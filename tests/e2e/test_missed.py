"""The webhook is down under a stream of creates: a scan finds every pod it missed, a repair leaves none."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable

import pytest

from tests.e2e.api import JSON, Api
from tests.e2e.controlplane import LEFT_ALONE, ControlPlane
from tests.e2e.install import NAMESPACE, Chassis
from tests.e2e.status import is_ready
from tests.e2e.workloads import job, pod, probes, workload
from tests.manifests import manifest
from webhook.cli import main as cli
from webhook.kube.leader_election import NAME, RENEW_SECONDS, outages_in

pytestmark = pytest.mark.e2e

OUTAGE = float(os.environ.get("CHASSIS_OUTAGE", "35"))
"""Seconds. It must be longer than the Lease of the uptime."""
EVERY = max(2.0, OUTAGE / 20)
"""Seconds between two creates: the node runs 110 pods."""

Scan = Callable[..., tuple[int, JSON, str]]


@pytest.fixture
def scan(control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> Scan:
    """`chassis scan --missed` in a namespace: its exit status, its JSON, its notes."""

    def run(namespace: str, *argv: str) -> tuple[int, JSON, str]:
        capsys.readouterr()
        command = ["scan", "--missed", "-o", "json", "-n", namespace, *argv]
        status = cli.main([*command, "--kubeconfig", str(control_plane.kubeconfig)])
        out, err = capsys.readouterr()
        return status, json.loads(out), err

    return run


def lacking(api: Api) -> set[str]:
    """The pods that have no probe, as the cluster shows them."""
    return {item["metadata"]["name"] for item in api.items("pods") if not probes(item)}


def found(report: JSON) -> set[str]:
    return {name for row in report["missed"] for name in row["pods"]}


@pytest.fixture
def renewed(control_plane: ControlPlane, chassis: Chassis) -> None:
    """The webhook renews its Lease: the outage after it is recorded."""
    control_plane.api.wait_for(
        "leases",
        lambda leases: any(item["metadata"]["name"] == NAME for item in leases),
        namespace=NAMESPACE,
        timeout=3 * RENEW_SECONDS,
    )


class Stream:
    """Creates a workload every now and then, until it is stopped."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.created = 0

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(EVERY):
            kind = ("Deployment", "StatefulSet")[self.created % 2]
            self._api.create(workload(kind, f"w{self.created}", replicas=2), self._namespace)
            self.created += 1


@pytest.fixture
def outage(api: Api, control_plane: ControlPlane, chassis: Chassis, renewed: None, namespace: str) -> Stream:
    """Workloads from before, during and after an outage."""
    with Stream(control_plane.api, namespace) as stream:
        time.sleep(2 * EVERY)
        assert chassis.stop() == 0
        began = time.time()
        try:
            time.sleep(OUTAGE)
        finally:
            chassis.start()
        time.sleep(2 * EVERY)
    api.wait_for(
        "leases",
        lambda leases: any(each.end > began for item in leases for each in outages_in(item)),
        namespace=NAMESPACE,
        timeout=3 * RENEW_SECONDS,
    )
    api.wait_for("pods", lambda pods: len(pods) == 2 * stream.created and all(map(is_ready, pods)))
    return stream


def test_every_pod_of_an_outage_is_found_and_repaired(
    api: Api, outage: Stream, namespace: str, scan: Scan, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = lacking(api)
    assert missing, "nothing was created while the webhook was down"
    began = time.monotonic()
    status, report, _ = scan(namespace)
    took = time.monotonic() - began
    with capsys.disabled():
        print(f"\n{2 * outage.created} pods, {len(missing)} made without the webhook, found in {took:.1f} s")
    assert status == 1
    assert found(report) == missing
    assert report["missedPods"] == len(missing)
    assert [row["why"] for row in report["missed"] if "while the webhook was down" not in row["why"]] == []
    assert {row["repair"] for row in report["missed"]} == {"restarted by --repair"}

    # At the edges of the outage, one pod of a workload may lack probes and the other not: both are replaced.
    restarted = tuple(f"{row['name']}-" for row in report["missed"])
    names = {item["metadata"]["name"] for item in api.items("pods")}
    untouched = {name for name in names if not name.startswith(restarted)}
    least = {row["name"]: 2 for row in report["missed"] if row["kind"] == "Deployment"}
    done = threading.Event()

    def watch() -> None:
        """A rollout of two replicas may take none of them down: maxUnavailable is 25 %."""
        while not done.wait(0.2):
            for item in api.items("deployments.apps"):
                name = item["metadata"]["name"]
                if name in least:
                    least[name] = min(least[name], item["status"].get("availableReplicas", 0))

    watching = threading.Thread(target=watch)
    watching.start()
    began = time.monotonic()
    try:
        status, report, notes = scan(namespace, "--repair", "--yes")
    finally:
        done.set()
        watching.join()
    with capsys.disabled():
        print(f"repaired in {time.monotonic() - began:.1f} s")
    assert status == 0, notes
    assert report["missedPods"] == 0
    assert lacking(api) == set()
    assert set(least.values()) == {2}
    assert untouched <= {item["metadata"]["name"] for item in api.items("pods")}


def test_what_a_restart_would_harm_or_not_help_is_only_listed(
    api: Api, chassis: Chassis, namespace: str, scan: Scan
) -> None:
    """A bare pod, a Job, a StatefulSet that its budget holds; excluded pods are counted."""
    api.patch("namespaces", namespace, {"metadata": {"labels": LEFT_ALONE}})
    held, budget = workload("StatefulSet", "held", replicas=2), _budget("held")
    for item in (pod("alone"), job("once"), held, budget):
        api.create(item)
    # Not counted: the pod of the Job may be ready before the second pod of the StatefulSet is created.
    made = {"alone", "held-0", "held-1"}
    api.wait_for("pods", lambda pods: made <= {each["metadata"]["name"] for each in pods if is_ready(each)})
    status, report, _ = scan(namespace)
    assert (status, report["missed"]) == (0, [])
    assert report["excludedPods"][namespace] >= 3
    api.patch("namespaces", namespace, {"metadata": {"labels": {"mlchassis.dev/admission": None}}})

    before = {item["metadata"]["uid"] for item in api.items("pods", labels="app=held")}
    status, report, notes = scan(namespace, "--repair", "--yes")
    assert status == 1
    ways = {row["name"]: row["repair"] for row in report["missed"]}
    assert "the pod has no controller" in ways["alone"]
    assert "PodDisruptionBudget held allows 0 unavailable pods" in notes
    assert {item["metadata"]["uid"] for item in api.items("pods", labels="app=held")} == before


def _budget(name: str) -> JSON:
    return manifest(
        "PodDisruptionBudget", name, {"maxUnavailable": 0, "selector": {"matchLabels": {"app": name}}}
    )


def test_pods_of_another_policy_are_found_if_they_would_be_made_otherwise(
    api: Api, control_plane: ControlPlane, chassis: Chassis, namespace: str, scan: Scan
) -> None:
    api.create(workload("Deployment", "served", replicas=1))
    api.wait_for("pods", lambda pods: len(pods) == 1 and is_ready(pods[0]))
    assert scan(namespace)[0] == 0
    with chassis.policy_restored():
        control_plane.apply(chassis.policy_with(rules="profile: standard\nmodes: {}\n"))
        assert scan(namespace)[0] == 0, "another policy with the same result is not missed"
        control_plane.apply(chassis.policy_with(standard_probes="readinessFailures: 4\n"))
        status, report, _ = scan(namespace)
        assert status == 1
        [row] = report["missed"]
        assert row["how"] == "earlier-policy"
        assert any("readinessProbe" in path for path in row["fields"]["standard-probes"])
        assert "created under another policy" in row["why"]
