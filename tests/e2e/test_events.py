"""Events on owners of unknown kinds, with only the component's rights, as `kubectl describe` shows them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.api import JSON, Api, ApiError
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import BASE, NAMESPACE, SERVICE_ACCOUNT, Chassis
from tests.e2e.test_rules import RULE, created, violating_pod
from tests.manifests import manifest

pytestmark = pytest.mark.e2e

ACCOUNTS = "system:serviceaccounts"
KIND = "Trainer"
DEFINITION: JSON = manifest(
    "CustomResourceDefinition",
    "trainers.events.example.com",
    {
        "group": "events.example.com",
        "scope": "Namespaced",
        "names": {"kind": KIND, "plural": "trainers", "singular": "trainer"},
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
)


@pytest.fixture
def trainers(control_plane: ControlPlane) -> Iterator[None]:
    """The API server serves a kind that only its operator knows."""
    control_plane.apply(DEFINITION)
    control_plane.kubectl("wait", "--for=condition=Established", "crd", DEFINITION["metadata"]["name"])
    yield
    control_plane.api.delete("customresourcedefinitions", DEFINITION["metadata"]["name"])


@pytest.fixture
def telling(control_plane: ControlPlane, chassis: Chassis) -> Iterator[Chassis]:
    """The webhook with --events and the component's rights, in place of the one without."""
    component = BASE.parent / "components" / "events" / "rbac.yaml"
    control_plane.apply(component.read_text())
    chassis.stop()
    replacement = Chassis(control_plane, arguments=["--events"])
    replacement.install()
    replacement.start()
    yield replacement
    assert replacement.stop() == 0
    control_plane.kubectl("delete", "--ignore-not-found", "-f", str(component))
    chassis.install()
    chassis.start()


def pods_of(owner: JSON, **names: str) -> JSON:
    """A pod that is restarted whenever another service is ill, of that owner."""
    made = violating_pod("")
    made["metadata"] |= names
    if "name" not in names:
        del made["metadata"]["name"]
    reference = {key: owner[key] for key in ("apiVersion", "kind")}
    reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
    made["metadata"]["ownerReferences"] = [{**reference, "controller": True}]
    return made


def test_an_operators_owner_gets_one_event(
    api: Api, control_plane: ControlPlane, telling: Chassis, trainers: None, namespace: str
) -> None:
    trainer = control_plane.kubectl(
        *("create", "-n", namespace, "-o", "json", "-f", "-"),
        stdin=json.dumps({"apiVersion": "events.example.com/v1", "kind": KIND, "metadata": {"name": "bert"}}),
    )
    owner = json.loads(trainer.stdout)
    operator = "system:serviceaccount:kube-system:trainer-operator"
    grant = ("clusterrolebinding", "trainer-operator", "--clusterrole=cluster-admin", f"--user={operator}")
    control_plane.kubectl("create", *grant)
    try:
        for _ in range(3):
            made = created(control_plane, namespace, pods_of(owner, generateName="bert-"), operator, ACCOUNTS)
            assert made.returncode == 0, made.stderr
        refused = created(control_plane, namespace, pods_of(owner, name="a-persons"))
        assert refused.returncode == 1
    finally:
        control_plane.kubectl("delete", *grant[:2])

    telling.wait_metric("chassis_events_total", 1, timeout=60, outcome="written")
    (event,) = (each for each in api.items("events") if each["reason"] == "ChassisFinding")
    assert event["involvedObject"]["uid"] == owner["metadata"]["uid"]
    assert RULE in event["message"]
    described = control_plane.kubectl("describe", "-n", namespace, "trainer", "bert").stdout
    assert "ChassisFinding" in described
    assert telling.metric("chassis_events_total", outcome="failed") == 0


def test_missing_rights_are_logged_once(
    control_plane: ControlPlane, telling: Chassis, trainers: None, namespace: str
) -> None:
    """The authorizer's own words are what it recognises a missing right by."""
    control_plane.kubectl("delete", "clusterrolebinding", "mlchassis-events")
    account = control_plane.api_as(f"system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}")
    with pytest.raises(ApiError, match=r"403|orbidden"):
        account.get("pods", "any", namespace)
    owner: JSON = {"apiVersion": "events.example.com/v1", "kind": KIND, "metadata": {"name": "b", "uid": "1"}}
    for name in ("one", "two"):
        made = pods_of(owner | {"metadata": {"name": "b", "uid": name}}, name=name)
        replica_sets = "system:serviceaccount:kube-system:replicaset-controller"
        answer = created(control_plane, namespace, made, replica_sets, ACCOUNTS)
        assert answer.returncode == 0, answer.stderr
    telling.wait_metric("chassis_events_total", 1, timeout=60, outcome="failed")
    missing = [line for line in telling.log_lines() if "a right is missing" in line]
    assert len(missing) == 1
    assert "get Pods" in missing[0]
