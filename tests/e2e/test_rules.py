"""The rules as users meet them: a refusal at `kubectl apply`, and all that is never refused."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.api import JSON, ApiError
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.workloads import UNKNOWN, container, workload

pytestmark = pytest.mark.e2e

RULE = "liveness-external-dependency"
REASON = "payments is the pod's own proxy"
PATH = "spec.template.spec.containers[0].livenessProbe"
ASKS_PAYMENTS: JSON = {
    "exec": {"command": ["curl", "-f", "http://payments/health"]},
    "timeoutSeconds": 5,
    "periodSeconds": 20,
    "failureThreshold": 6,
}


def violating(name: str, image: str = UNKNOWN, *, exempt: bool = False) -> JSON:
    """A Deployment that is restarted whenever another service is ill."""
    made = workload("Deployment", name, container(image, livenessProbe=ASKS_PAYMENTS), replicas=2)
    if exempt:
        made["metadata"]["annotations"] = {"mlchassis.dev/exempt": f"{RULE}={REASON}"}
    return made


def audited(control_plane: ControlPlane, namespace: str) -> Iterator[tuple[int, dict[str, str]]]:
    """(HTTP status, what our validating entry noted) of each write of a Deployment in a namespace."""
    for line in control_plane.audit_log.read_text().splitlines():
        event = json.loads(line)
        about = event.get("objectRef", {})
        if (about.get("resource"), about.get("namespace")) == ("deployments", namespace):
            ours = "validate.mlchassis.dev/"
            noted = {
                key.removeprefix(ours): value
                for key, value in event.get("annotations", {}).items()
                if key.startswith(ours)
            }
            yield event["responseStatus"]["code"], noted


def test_the_refusal_has_the_fault_the_place_the_reason_and_the_fix(
    control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    text = json.dumps(violating("server"))
    refused = control_plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=text, check=False)
    assert refused.returncode == 1
    for part in (RULE, PATH, "payments", "Fix:", f'mlchassis.dev/exempt: "{RULE}=<reason>"'):
        assert part in refused.stderr
    denial = refused.stderr.partition('admission webhook "validate.mlchassis.dev" denied the request: ')[2]
    assert denial.startswith("1 finding")
    assert max(map(len, denial.splitlines())) <= 80
    assert not control_plane.api.exists("deployments", "server", namespace)
    status, noted = list(audited(control_plane, namespace))[-1]
    assert status == 403
    assert RULE in noted["findings"]


def test_similar_warnings_survive_clients_that_drop_repeated_lines(
    control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    command = ["sh", "-c", "test -e /tmp/alive"]
    probe = {"exec": {"command": command}, "timeoutSeconds": 10, "periodSeconds": 20, "failureThreshold": 1}
    containers = [{**container(UNKNOWN, livenessProbe=probe), "name": f"c{n}"} for n in range(3)]
    text = json.dumps(workload("Deployment", "alike", *containers))
    taken = control_plane.kubectl("apply", "-n", namespace, "--dry-run=server", "-f", "-", stdin=text)
    said = " ".join(taken.stderr.replace("Warning: ", "").split())
    assert said.count("Set failureThreshold to 3 or more; 6 suits a model server. (spec") == 3


def test_a_dry_run_is_refused_alike(control_plane: ControlPlane, chassis: Chassis, namespace: str) -> None:
    with pytest.raises(ApiError) as caught:
        control_plane.api.create(violating("server"), namespace, dry_run=True)
    assert caught.value.status == 403
    assert RULE in caught.value.message


def test_an_exemption_lets_it_in_and_is_audited(
    control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    answer = control_plane.api.create(violating("server", exempt=True), namespace)
    assert not any(RULE in warning for warning in answer.warnings)
    status, noted = list(audited(control_plane, namespace))[-1]
    assert status == 201
    (exemption,) = json.loads(noted["exemptions"])
    assert exemption == {"rule": RULE, "path": f"{PATH}.exec.command", "reason": REASON}


def test_an_exemption_without_a_reason_does_not_count(
    control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    without = violating("server")
    without["metadata"]["annotations"] = {"mlchassis.dev/exempt": RULE}
    with pytest.raises(ApiError, match=RULE):
        control_plane.api.create(without, namespace)


def test_a_new_image_on_an_old_violation_is_let_in_with_a_warning(
    control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    control_plane.apply(violating("server", exempt=True), "-n", namespace)
    newer = UNKNOWN.replace(":7", ":8")
    rolled = control_plane.apply(violating("server", newer), "-n", namespace)
    assert f"Warning: {RULE}" in rolled.stderr
    stored = control_plane.api.get("deployments", "server", namespace)
    assert stored["spec"]["template"]["spec"]["containers"][0]["image"] == newer
    assert "mlchassis.dev/exempt" not in stored["metadata"]["annotations"]


def test_an_update_is_refused_for_what_it_newly_brings_in(
    control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    control_plane.apply(violating("server", exempt=True), "-n", namespace)
    worse = violating("server")
    second = container(UNKNOWN, 8001, livenessProbe=ASKS_PAYMENTS) | {"name": "second"}
    worse["spec"]["template"]["spec"]["containers"].append(second)
    text = json.dumps(worse)
    refused = control_plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=text, check=False)
    assert refused.returncode == 1
    denial = refused.stderr.partition("denied the request: ")[2]
    assert denial.startswith("1 finding")
    assert "spec.template.spec.containers[1].livenessProbe" in denial


def test_scale_metadata_and_deletion_are_never_refused(
    control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    api = control_plane.api
    api.create(violating("server", exempt=True), namespace)
    api.patch(
        "deployments", "server", {"metadata": {"annotations": {"mlchassis.dev/exempt": None}}}, namespace
    )
    api.patch("deployments", "server", {"metadata": {"labels": {"team": "search"}}}, namespace)
    api.patch("deployments", "server", {"spec": {"replicas": 3}}, namespace)
    api.patch("deployments", "server", {"spec": {"replicas": 1}}, namespace, "scale")
    api.delete("deployments", "server", namespace)
    api.wait_for("deployments", lambda items: not items, namespace=namespace)


def test_a_replica_set_can_always_replace_a_pod(
    control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    api = control_plane.api
    api.create(violating("server", exempt=True), namespace)
    first = api.wait_for("pods", lambda pods: len(pods) == 2, namespace=namespace)
    assert all("mlchassis.dev/exempt" not in pod["metadata"].get("annotations", {}) for pod in first)
    lost = first[0]["metadata"]
    api.delete("pods", lost["name"], namespace, grace=0)
    api.wait_for(
        "pods",
        lambda pods: len(pods) == 2 and lost["uid"] not in {pod["metadata"]["uid"] for pod in pods},
        namespace=namespace,
    )
