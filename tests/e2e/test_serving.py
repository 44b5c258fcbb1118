"""Certificate, trust and facts of the running webhook, with the rights that the manifests give it."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from policies.core.resources import Resource
from tests.e2e.api import JSON, Answer, ApiError
from tests.e2e.controlplane import HOST, ControlPlane
from tests.e2e.install import CONFIGURATIONS, NAMESPACE, Chassis
from tests.e2e.workloads import PROBES, injected, pod, probes
from tests.hanging import HANGING

pytestmark = pytest.mark.e2e
SECRET = "mlchassis-tls"
NAME = "chassis.mlchassis.dev"


def bundles(configuration: JSON) -> set[str]:
    return {entry["clientConfig"].get("caBundle", "") for entry in configuration["webhooks"]}


def certificate(chassis: Chassis) -> str:
    return ssl.get_server_certificate((HOST, chassis.port))


@pytest.fixture
def second(control_plane: ControlPlane, chassis: Chassis) -> Iterator[Chassis]:
    """Another replica, on another port, next to the one that the API server calls."""
    replica = Chassis(control_plane)
    replica.start()
    yield replica
    assert replica.stop() == 0


def test_every_fact_is_read_with_the_rights_of_the_manifests(chassis: Chassis) -> None:
    for resource in Resource:
        chassis.wait_metric("chassis_facts_synced", 1, resource=resource.value)


def test_replicas_serve_one_certificate_and_one_policy(chassis: Chassis, second: Chassis) -> None:
    assert certificate(second) == certificate(chassis)
    second.wait_metric("chassis_policy_valid", 1)
    for name in ("chassis_certificate_expiry_timestamp_seconds", "chassis_policy_valid"):
        assert second.metric(name) == chassis.metric(name)


@pytest.mark.parametrize("resource", CONFIGURATIONS)
def test_a_wiped_ca_bundle_is_back_at_once(
    control_plane: ControlPlane, chassis: Chassis, second: Chassis, resource: str
) -> None:
    """As after `kubectl replace`, or a GitOps tool that owns the whole object; with two replicas at it."""
    configuration = control_plane.api.get(resource, NAME)
    trusted = bundles(configuration)
    for entry in configuration["webhooks"]:
        del entry["clientConfig"]["caBundle"]
    control_plane.api.replace(configuration)
    control_plane.api.wait(resource, NAME, lambda it: bundles(it) == trusted, timeout=60)
    settled = control_plane.api.get(resource, NAME)["metadata"]["resourceVersion"]
    assert injected(control_plane.api) == set(PROBES)
    assert control_plane.api.get(resource, NAME)["metadata"]["resourceVersion"] == settled, "nobody writes on"


def test_a_damaged_secret_is_replaced_and_trusted(control_plane: ControlPlane, chassis: Chassis) -> None:
    before = control_plane.api.get("secrets", SECRET, NAMESPACE)["data"]
    damaged = {"tls.key": base64.b64encode(b"rubbish").decode()}
    control_plane.api.patch("secrets", SECRET, {"data": damaged}, NAMESPACE)
    chassis.restart()
    secret = control_plane.api.get("secrets", SECRET, NAMESPACE)
    assert secret["data"]["tls.key"] not in (damaged["tls.key"], before["tls.key"])
    assert secret["data"]["ca.crt"] == before["ca.crt"], "what other replicas serve stays trusted"
    for resource in CONFIGURATIONS:
        control_plane.api.wait(
            resource, NAME, lambda it: bundles(it) == {secret["data"]["ca.crt"]}, timeout=60
        )
    assert injected(control_plane.api) == set(PROBES)


def test_an_api_server_that_is_away_for_a_while_is_met_again(tmp_path: Path) -> None:
    """The cached facts stay in use, and the watches recover by themselves."""
    with ControlPlane(tmp_path / "cluster") as control_plane:
        chassis = Chassis(control_plane)
        chassis.install()
        chassis.start()
        try:
            chassis.process.wait_until(lambda: not _unsynced(chassis))
            control_plane.end("kube-apiserver")
            chassis.process.wait_until(lambda: "can't read the API server" in _log(chassis))
            assert chassis.ready()
            assert chassis.metric("chassis_policy_valid") == 1
            assert _unsynced(chassis) == set()

            control_plane.start_api_server()
            control_plane.apply(chassis.policy_with(standard_probes="mode: off\n"))
            chassis.process.wait_until(lambda: injected(control_plane.api) == set())
            # An API server that has just started may refuse a list before it knows any role. That fact is
            # read again after a pause, which may begin after all others have recovered.
            chassis.process.wait_until(lambda: _recovered(chassis) and not _unsynced(chassis))
        finally:
            assert chassis.stop() == 0


def _log(chassis: Chassis) -> str:
    return "\n".join(chassis.log_lines())


def _unsynced(chassis: Chassis) -> set[Resource]:
    return {each for each in Resource if chassis.metric("chassis_facts_synced", resource=each.value) != 1}


def _recovered(chassis: Chassis) -> bool:
    """Whether every list that could not be read has been read again since."""
    log = _log(chassis)
    return log.count("can't read the API server") == log.count("reading the API server again")


def test_a_hung_worker_is_replaced_while_creates_go_on_with_fail_set(tmp_path: Path) -> None:
    """What the hung worker held is refused once, and let in when it is sent again."""
    with ControlPlane(tmp_path / "cluster") as control_plane:
        chassis = Chassis(control_plane, arguments=["--workers=2"], program=("-c", HANGING))
        chassis.install()
        chassis.start()
        try:
            configuration = control_plane.api.get(CONFIGURATIONS[0], NAME)
            for entry in configuration["webhooks"]:
                entry.update(failurePolicy="Fail", timeoutSeconds=2)
            control_plane.api.replace(configuration)
            control_plane.api.wait(CONFIGURATIONS[0], NAME, lambda it: bundles(it) != {""}, timeout=60)
            with ThreadPoolExecutor(1) as pool:
                hung = pool.submit(_created, control_plane, "hangs")
                let_in = refused = 0
                while "a review ended its worker" not in _log(chassis):
                    seen = _created(control_plane, f"p{let_in + refused}")
                    let_in, refused = let_in + (seen is not None), refused + (seen is None)
                    assert seen is None or probes(seen.body) == set(PROBES)
                assert hung.result() is None
            assert let_in > 0
            chassis.wait_metric("chassis_worker_restarts_total", 1, reason="hung")
            chassis.process.wait_until(lambda: _log(chassis).count('"listening"') == 3)
            for number in range(20):
                seen = _created(control_plane, f"after-{number}")
                assert seen is not None
                assert probes(seen.body) == set(PROBES)
            again = _created(control_plane, "hangs")
            assert again is not None
            assert "did not read this object" in " ".join(again.warnings)
            print(f"while it hung: {let_in} let in, {refused} refused")
        finally:
            assert chassis.stop() == 0


def _created(control_plane: ControlPlane, name: str) -> Answer | None:
    """None where the API server refused it because no webhook answered."""
    try:
        return control_plane.api.create(pod(name), "default", dry_run=True)
    except ApiError as error:
        if "failed calling webhook" not in str(error):
            raise
        return None
