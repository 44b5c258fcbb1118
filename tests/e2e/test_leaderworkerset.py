"""Groups of the real LeaderWorkerSet operator form with the probes that the webhook injects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.api import JSON
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.leaderworkerset import Operator

pytestmark = pytest.mark.e2e

NODE = "node-of-groups"
TAINT: JSON = {"key": "groups", "effect": "NoSchedule"}
TOLERATION: JSON = {"key": "groups", "operator": "Exists"}
LEADER: JSON = {
    "name": "vllm",
    "image": "vllm/vllm-openai:v0.11.0",
    "args": ["--model", "m", "--tensor-parallel-size", "8"],
    "ports": [{"containerPort": 8000}],
}
WORKER: JSON = {"name": "worker", "image": "example.org/worker:1"}


@pytest.fixture(scope="module")
def operator(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    # Only these tests run the pods of this node: no other pod may be bound to it.
    control_plane.add_node(NODE, {"groups": "yes"}, [TAINT], runs_pods=False)
    with Operator(control_plane, tmp_path_factory.mktemp("lws")) as running:
        yield running
    control_plane.api.delete("nodes", NODE)


def group(name: str, namespace: str, policy: str) -> JSON:
    def template(container: JSON) -> JSON:
        spec = {"containers": [container], "nodeSelector": {"groups": "yes"}, "tolerations": [TOLERATION]}
        return {"spec": spec}

    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": 1,
            "startupPolicy": policy,
            "leaderWorkerTemplate": {
                "size": 3,
                "leaderTemplate": template(LEADER),
                "workerTemplate": template(WORKER),
            },
        },
    }


def probes(pod: JSON) -> set[str]:
    return {name for name in pod["spec"]["containers"][0] if name.endswith("Probe")}


def run(control_plane: ControlPlane, pod: JSON, *, answers: bool) -> None:
    """Be the kubelet of a pod: its container runs, and its server answers or not. Without readiness and
    startup probes it is Ready when it runs."""
    ready = answers or not ({"readinessProbe", "startupProbe"} & probes(pod))
    status = "True" if ready else "False"
    condition = [{"type": kind, "status": status} for kind in ("Ready", "ContainersReady")]
    container = {
        "name": pod["spec"]["containers"][0]["name"],
        "image": "",
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": 0,
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }
    control_plane.api.patch(
        "pods",
        pod["metadata"]["name"],
        {"status": {"phase": "Running", "conditions": condition, "containerStatuses": [container]}},
        namespace=pod["metadata"]["namespace"],
        subresource="status",
    )


def bound(pod: JSON) -> bool:
    return bool(pod["spec"].get("nodeName"))


def test_a_group_whose_workers_wait_for_their_leader_forms(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    api = control_plane.api
    api.create(group("ready", namespace, "LeaderReady"))
    leader = api.wait("pods", "ready-0", bound, namespace=namespace)
    assert probes(leader) == {"livenessProbe"}, "nothing that delays its readiness"
    assert leader["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    # vLLM answers only with its workers, which are not there.
    run(control_plane, leader, answers=False)
    for name in ("ready-0-1", "ready-0-2"):
        worker = api.wait("pods", name, bound, namespace=namespace)
        assert probes(worker) == set()


def test_a_group_that_is_created_at_once_has_all_probes(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    api = control_plane.api
    chassis.restart()  # it lists LeaderWorkerSets now that they are served, without a pause
    api.create(group("created", namespace, "LeaderCreated"))
    leader = api.wait("pods", "created-0", bound, namespace=namespace)
    api.wait("pods", "created-0-2", bound, namespace=namespace)
    assert probes(leader) == {"livenessProbe", "readinessProbe", "startupProbe"}
    owner = leader["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("StatefulSet", "created")
