"""The policy's ConfigMap: edits are live at once, bad ones are refused, and the last good one stays."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.e2e.api import JSON
from tests.e2e.controlplane import ControlPlane, KubectlError
from tests.e2e.install import NAMESPACE, POLICY, Chassis
from tests.e2e.workloads import PROBES, injected

pytestmark = pytest.mark.e2e
LIVE_WITHIN = 2.0  # seconds from the end of `kubectl apply`
OFF = "mode: off\n"
BAD = "mode: sometimes\n"
LABEL = "mlchassis.dev/policy"


@pytest.fixture
def policy(control_plane: ControlPlane, chassis: Chassis) -> Iterator[JSON]:
    """The ConfigMap as it was; put back afterwards, and live again before the next test."""
    with chassis.policy_restored() as before:
        yield before
    chassis.wait_metric("chassis_policy_valid", 1)
    _seconds_until_probed(control_plane, set(PROBES))


def _seconds_until_probed(control_plane: ControlPlane, wanted: set[str], timeout: float = 60) -> float:
    """Dry-run pods, one after the other, until one gets the wanted probes; the seconds that took."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < timeout:
        if injected(control_plane.api) == wanted:
            return passed
    raise AssertionError(f"no pod got exactly the probes {wanted or '{}'} within {timeout:g} s")


def test_an_edit_changes_the_next_pod_within_two_seconds(
    control_plane: ControlPlane, chassis: Chassis, policy: JSON
) -> None:
    _seconds_until_probed(control_plane, set(PROBES))
    off, on = [], []
    for _ in range(3):  # the machine may stop during one of them
        control_plane.apply(chassis.policy_with(standard_probes=OFF))
        off.append(_seconds_until_probed(control_plane, set()))
        control_plane.apply(policy)
        on.append(_seconds_until_probed(control_plane, set(PROBES)))
    assert min(off) < LIVE_WITHIN
    assert min(on) < LIVE_WITHIN


def test_a_bad_edit_is_refused_at_admission(
    control_plane: ControlPlane, chassis: Chassis, policy: JSON
) -> None:
    with pytest.raises(KubectlError) as refused:
        control_plane.apply(chassis.policy_with(standard_probes=BAD))
    message = str(refused.value)
    for part in ("policy-config-invalid", "standard-probes.yaml", "mode", "enforce"):
        assert part in message, message
    assert chassis.policy()["data"] == policy["data"]
    assert chassis.metric("chassis_policy_valid") == 1


def test_a_bad_edit_that_slips_in_is_reported_and_leaves_the_old_policy_in_force(
    control_plane: ControlPlane, chassis: Chassis, policy: JSON
) -> None:
    # Without its label the ConfigMap is not sent to us: the way round our own admission.
    control_plane.kubectl("label", "-n", NAMESPACE, "configmap", POLICY, f"{LABEL}-")
    bad = chassis.policy_with(standard_probes=BAD)
    control_plane.api.patch("configmaps", POLICY, {"data": bad["data"]}, NAMESPACE)

    events = control_plane.api.wait_for("events", _about_the_policy, namespace=NAMESPACE)
    event = next(filter(_is_about_the_policy, events))
    assert event["involvedObject"]["uid"] == chassis.policy()["metadata"]["uid"]
    assert "standard-probes.yaml: mode: " in event["message"]
    chassis.wait_metric("chassis_policy_valid", 0)
    assert chassis.get("/readyz")[0] == 200
    assert injected(control_plane.api) == set(PROBES), "the last good policy is in force"


def test_the_policy_outlives_its_config_map(
    control_plane: ControlPlane, chassis: Chassis, policy: JSON
) -> None:
    control_plane.kubectl("delete", "-n", NAMESPACE, "configmap", POLICY)
    try:
        chassis.wait_metric("chassis_policy_valid", 0)
        assert injected(control_plane.api) == set(PROBES)
        assert chassis.get("/readyz")[0] == 200
    finally:
        control_plane.apply(policy)
    chassis.wait_metric("chassis_policy_valid", 1)


def _about_the_policy(events: list[JSON]) -> bool:
    return any(map(_is_about_the_policy, events))


def _is_about_the_policy(event: JSON) -> bool:
    involved = event["involvedObject"]
    return event["type"] == "Warning" and (involved["kind"], involved["name"]) == ("ConfigMap", POLICY)
