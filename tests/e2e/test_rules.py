"""The rules as users meet them: a refusal at `kubectl apply`, and all that is never refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.e2e.api import JSON, Api, ApiError
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.workloads import UNKNOWN, container, pod, workload
from tests.manifests import manifest

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
    api: Api, control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    text = json.dumps(violating("server"))
    refused = control_plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=text, check=False)
    assert refused.returncode == 1
    for part in (RULE, PATH, "payments", "Fix:", f'mlchassis.dev/exempt: "{RULE}=<reason>"'):
        assert part in refused.stderr
    denial = refused.stderr.partition('admission webhook "validate.mlchassis.dev" denied the request: ')[2]
    assert denial.startswith("1 finding")
    assert max(map(len, denial.splitlines())) <= 80
    assert not api.exists("deployments", "server")
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
    output = " ".join(taken.stderr.replace("Warning: ", "").split())
    assert output.count("Set failureThreshold to 3 or more; 6 suits a model server. (spec") == 3


def test_a_dry_run_is_refused_alike(api: Api, chassis: Chassis) -> None:
    with pytest.raises(ApiError) as caught:
        api.create(violating("server"), dry_run=True)
    assert caught.value.status == 403
    assert RULE in caught.value.message


def test_an_exemption_lets_it_in_and_is_audited(
    api: Api, control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    answer = api.create(violating("server", exempt=True))
    assert not any(RULE in warning for warning in answer.warnings)
    status, noted = list(audited(control_plane, namespace))[-1]
    assert status == 201
    (exemption,) = json.loads(noted["exemptions"])
    assert exemption == {"rule": RULE, "path": f"{PATH}.exec.command", "reason": REASON}


def test_an_exemption_without_a_reason_does_not_count(api: Api, chassis: Chassis) -> None:
    without = violating("server")
    without["metadata"]["annotations"] = {"mlchassis.dev/exempt": RULE}
    with pytest.raises(ApiError, match=RULE):
        api.create(without)


def test_a_new_image_on_an_old_violation_is_let_in_with_a_warning(
    api: Api, control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    control_plane.apply(violating("server", exempt=True), "-n", namespace)
    newer = UNKNOWN.replace(":7", ":8")
    rolled = control_plane.apply(violating("server", newer), "-n", namespace)
    assert f"Warning: {RULE}" in rolled.stderr
    stored = api.get("deployments", "server")
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


def test_scale_metadata_and_deletion_are_never_refused(api: Api, chassis: Chassis) -> None:
    api.create(violating("server", exempt=True))
    api.patch("deployments", "server", {"metadata": {"annotations": {"mlchassis.dev/exempt": None}}})
    api.patch("deployments", "server", {"metadata": {"labels": {"team": "search"}}})
    api.patch("deployments", "server", {"spec": {"replicas": 3}})
    api.patch("deployments", "server", {"spec": {"replicas": 1}}, subresource="scale")
    api.delete("deployments", "server")
    api.wait_for("deployments", lambda items: not items)


def test_a_replica_set_can_always_replace_a_pod(api: Api, chassis: Chassis) -> None:
    api.create(violating("server", exempt=True))
    first = api.wait_for("pods", lambda pods: len(pods) == 2)
    assert all("mlchassis.dev/exempt" not in pod["metadata"].get("annotations", {}) for pod in first)
    lost = first[0]["metadata"]
    api.delete("pods", lost["name"], grace=0)
    api.wait_for(
        "pods", lambda pods: len(pods) == 2 and lost["uid"] not in {pod["metadata"]["uid"] for pod in pods}
    )


# --- marks that anybody can write: their effect depends on the account that writes them ----------

REPLICA_SETS = "system:serviceaccount:kube-system:replicaset-controller"
NODE = "system:node:node-0"


ATTEMPTS = 10
"""A controller that has just written the status of an object makes the API server refuse a PUT: Conflict."""


def violating_pod(name: str) -> JSON:
    """A pod that is restarted whenever another service is ill."""
    made = pod(name)
    made["spec"]["containers"] = [container(UNKNOWN, livenessProbe=ASKS_PAYMENTS)]
    return made


def owned(pod_name: str, **owner: str) -> JSON:
    made = violating_pod(pod_name)
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "server-1", "uid": "1"} | owner
    made["metadata"]["ownerReferences"] = [{**reference, "controller": True}]
    return made


def created(
    control_plane: ControlPlane, namespace: str, item: JSON, account: str = "", group: str = ""
) -> subprocess.CompletedProcess[str]:
    whose = [f"--as={account}", f"--as-group={group}"] if account else []
    arguments = ("create", "-n", namespace, "-f", "-", *whose)
    return control_plane.kubectl(*arguments, stdin=json.dumps(item), check=False)


def test_an_owner_counts_where_a_controller_writes_it(
    control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    forged = created(control_plane, namespace, owned("forged"))
    assert forged.returncode == 1
    assert RULE in forged.stderr
    replaced = created(control_plane, namespace, owned("replaced"), REPLICA_SETS, "system:serviceaccounts")
    assert replaced.returncode == 0, replaced.stderr


def test_the_mark_of_a_mirror_pod_counts_where_its_node_writes_it(
    api: Api, control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    node = api.get("nodes", "node-0")
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-0", "uid": node["metadata"]["uid"]}
    marked = owned("mirror-node-0", **owner)
    marked["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "1"}
    marked["spec"]["nodeName"] = "node-0"
    forged = created(control_plane, namespace, marked)
    assert forged.returncode == 1
    assert RULE in forged.stderr
    mirrored = created(control_plane, namespace, marked, NODE, "system:nodes")
    assert mirrored.returncode == 0, mirrored.stderr
    assert mirrored.stderr == "", "it is not even looked at"


def test_an_update_that_makes_a_suspicion_certain_is_refused(
    control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    probe = ASKS_PAYMENTS | {"exec": {"command": ["sh", "-c", "curl -f http://$H/health"]}}
    env = [{"name": "H", "valueFrom": {"configMapKeyRef": {"name": "hosts", "key": "h", "optional": True}}}]
    made = workload("Deployment", "server", container(UNKNOWN, livenessProbe=probe, env=env), replicas=2)
    taken = created(control_plane, namespace, made)
    assert taken.returncode == 0, taken.stderr
    assert RULE in taken.stderr
    env[0] = {"name": "H", "value": "payments"}
    text = json.dumps(made)
    for _ in range(ATTEMPTS):
        refused = control_plane.kubectl("replace", "-n", namespace, "-f", "-", stdin=text, check=False)
        if "(Conflict)" not in refused.stderr:
            break
    assert refused.returncode == 1
    assert RULE in refused.stderr


def test_a_replication_controller_is_judged(
    control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    item = manifest(
        "ReplicationController",
        "old",
        {
            "replicas": 1,
            "selector": {"app": "old"},
            "template": {"metadata": {"labels": {"app": "old"}}, "spec": violating_pod("old")["spec"]},
        },
    )
    refused = created(control_plane, namespace, item)
    assert refused.returncode == 1
    assert f"1 finding\n\n1. {RULE}" in refused.stderr
