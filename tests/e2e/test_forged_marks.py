"""Marks that anybody can write: what they switch off depends on the account that writes them."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.e2e.api import JSON
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.test_rules import ASKS_PAYMENTS, RULE
from tests.e2e.workloads import UNKNOWN, container, pod, workload
from tests.manifests import manifest

pytestmark = pytest.mark.e2e

REPLICA_SETS = "system:serviceaccount:kube-system:replicaset-controller"
NODE = "system:node:node-0"


ATTEMPTS = 10
"""A controller that has just written the status of an object makes the API server refuse a PUT: Conflict."""


def violating(name: str) -> JSON:
    """A pod that is restarted whenever another service is ill."""
    made = pod(name)
    made["spec"]["containers"] = [container(UNKNOWN, livenessProbe=ASKS_PAYMENTS)]
    return made


def owned(pod_name: str, **owner: str) -> JSON:
    made = violating(pod_name)
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
    control_plane: ControlPlane, chassis: Chassis, namespace: str
) -> None:
    node = control_plane.api.get("nodes", "node-0")
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
            "template": {"metadata": {"labels": {"app": "old"}}, "spec": violating("old")["spec"]},
        },
    )
    refused = created(control_plane, namespace, item)
    assert refused.returncode == 1
    assert f"1 finding\n\n1. {RULE}" in refused.stderr
