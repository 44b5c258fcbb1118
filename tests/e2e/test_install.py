"""The shipped manifests, as a real API server takes them, and the life of the server behind them."""

from __future__ import annotations

import base64
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from tests.e2e.api import JSON, Api
from tests.e2e.controlplane import HOST, ControlPlane
from tests.e2e.install import NAMESPACE, SERVICE_ACCOUNT, Chassis
from tests.e2e.workloads import PROBES, pod, probes

pytestmark = pytest.mark.e2e
SUBJECT = f"system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}"


def test_every_entry_answers_fast_and_as_registered(chassis: Chassis) -> None:
    entries = list(chassis.entries())
    assert len({entry["name"] for entry in entries}) == len(entries) >= 3
    for entry in entries:
        assert entry["timeoutSeconds"] <= 5
        assert entry["matchPolicy"] == "Equivalent"
        assert entry["sideEffects"] == ("NoneOnDryRun" if _path(entry) == "/name" else "None")
        assert entry["admissionReviewVersions"] == ["v1"]
        assert entry["clientConfig"]["caBundle"]


def test_only_the_names_of_labelled_pods_fail_closed(chassis: Chassis) -> None:
    """A second worker under another name is worse than a retry; no other failure may stop a cluster."""
    for entry in chassis.entries():
        if _path(entry) == "/name":
            assert entry["objectSelector"].get("matchExpressions")
        else:
            assert entry["failurePolicy"] == "Ignore"


def _path(entry: JSON) -> str:
    return urlsplit(str(entry["clientConfig"]["url"])).path


@pytest.mark.parametrize(
    ("verb", "resource", "namespace"),
    [
        ("get", "secrets", "default"),
        ("list", "secrets", "kube-system"),
        ("create", "pods", "default"),
        ("patch", "deployments.apps", "default"),
        ("update", "configmaps", NAMESPACE),
        ("delete", "mutatingwebhookconfigurations.admissionregistration.k8s.io", "default"),
        ("create", "clusterrolebindings.rbac.authorization.k8s.io", "default"),
    ],
)
def test_its_service_account_may_not(
    control_plane: ControlPlane, chassis: Chassis, verb: str, resource: str, namespace: str
) -> None:
    answer = control_plane.kubectl(
        "auth", "can-i", verb, resource, "-n", namespace, "--as", SUBJECT, check=False
    )
    assert answer.stdout.strip() == "no"


def test_pods_are_let_in_while_it_is_down_and_changed_when_it_is_back(api: Api, chassis: Chassis) -> None:
    trusted = [entry["clientConfig"]["caBundle"] for entry in chassis.entries()]
    assert chassis.stop() == 0, "SIGTERM drains and ends with 0"
    try:
        assert probes(api.create(pod("meanwhile")).body) == set()
    finally:
        chassis.start()
    assert probes(api.create(pod("after")).body) == set(PROBES)
    assert [entry["clientConfig"]["caBundle"] for entry in chassis.entries()] == trusted, (
        "the certificate authority is kept in its Secret"
    )


def test_a_second_replica_serves_under_the_same_authority(
    control_plane: ControlPlane, chassis: Chassis
) -> None:
    bundles = {entry["clientConfig"]["caBundle"] for entry in chassis.entries()}
    second = Chassis(control_plane)
    second.start()
    try:
        (bundle,) = bundles
        tls = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
        with socket.create_connection((HOST, second.port), 10) as connection:
            tls.wrap_socket(connection, server_hostname=HOST).close()  # raises unless it is trusted
        assert {entry["clientConfig"]["caBundle"] for entry in chassis.entries()} == bundles
    finally:
        assert second.stop() == 0


def test_a_namespace_can_leave(
    api: Api, control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    control_plane.kubectl("label", "namespace", namespace, "mlchassis.dev/admission=disabled")
    assert probes(api.create(pod("alone")).body) == set()


def test_no_review_is_lost_under_load(control_plane: ControlPlane, chassis: Chassis) -> None:
    """A review that fails is let in unchanged, which only this test would notice."""
    pods = [pod(f"burst-{number}") for number in range(400)]
    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(lambda it: control_plane.api.create(it, "default", dry_run=True), pods))
    assert {frozenset(probes(answer.body)) for answer in answers} == {frozenset(PROBES)}


def test_it_logs_in_with_nothing_but_its_own_rights(chassis: Chassis) -> None:
    forbidden = [line for line in chassis.log_lines() if "forbidden" in line.lower()]
    assert forbidden == []
