"""Launchers and workers of the real MPI operator: the pods it makes, and that it keeps added fields."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.api import JSON, Api
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.operators import MPI, Operator, bound, end, run, versions
from tests.e2e.workloads import probes

pytestmark = [pytest.mark.e2e, pytest.mark.operators]

NODE = "node-of-mpi"
WRITTEN = ("pods", "jobs", "services", "configmaps", "secrets", "mpijobs.kubeflow.org")
JOBS = "mpijobs.kubeflow.org"
ROLE = "training.kubeflow.org/job-role"


@pytest.fixture(scope="module")
def operator(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    taint = {"key": "mpi", "effect": "NoSchedule"}
    # Only these tests run the pods of this node: no other pod may be bound to it.
    control_plane.add_node(NODE, {"mpi": "yes"}, [taint], {"nvidia.com/gpu": "64"}, runs_pods=False)
    with Operator(MPI, control_plane, tmp_path_factory.mktemp("mpi")) as running:
        yield running
    control_plane.api.delete("nodes", NODE)


def mpi_job(name: str, namespace: str, **spec: object) -> JSON:
    """A launcher and two workers, each of which has a port and an agent after it."""

    def replica(count: int, *containers: JSON) -> JSON:
        pod = {
            "nodeSelector": {"mpi": "yes"},
            "tolerations": [{"key": "mpi", "operator": "Exists"}],
            "containers": list(containers),
        }
        return {"replicas": count, "template": {"spec": pod}}

    image = "registry.example/train:1"
    worker = {
        "name": "worker",
        "image": image,
        "ports": [{"containerPort": 2222}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    launcher = {"name": "launcher", "image": image, "command": ["mpirun", "python", "train.py"]}
    agent = {"name": "agent", "image": "registry.example/agent:1"}
    replicas = {"Launcher": replica(1, launcher), "Worker": replica(2, worker, agent)}
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"mpiReplicaSpecs": replicas, "runPolicy": {"cleanPodPolicy": "None"}, **spec},
    }


def members(api: Api, namespace: str, name: str, role: str, count: int) -> list[JSON]:
    """The bound pods of a role."""
    return api.wait_for(
        "pods",
        lambda pods: len(pods) == count and all(map(bound, pods)),
        namespace=namespace,
        labels=f"training.kubeflow.org/job-name={name},{ROLE}={role}",
        timeout=120,
    )


def runs(api: Api, namespace: str, name: str) -> tuple[JSON, list[JSON]]:
    """Let all pods run, workers first, and wait until the operator has seen that the job runs."""
    workers = members(api, namespace, name, "worker", 2)
    for worker in workers:
        run(api, worker, answers=False)
    (launcher,) = members(api, namespace, name, "launcher", 1)
    run(api, launcher)

    def settled(job: JSON) -> bool:
        status = job.get("status", {})
        active = [
            status.get("replicaStatuses", {}).get(role, {}).get("active") for role in ("Launcher", "Worker")
        ]
        return active == [1, 2] and any(
            each["type"] == "Running" and each["status"] == "True" for each in status.get("conditions", ())
        )

    api.wait(JOBS, name, settled, namespace=namespace, timeout=120)
    # The Job's own controller counts ready pods a second later.
    api.wait(
        "jobs",
        f"{name}-launcher",
        lambda it: it["status"].get("ready") == 1,
        namespace=namespace,
        timeout=120,
    )
    return launcher, workers


def test_members_arrive_with_their_owners_and_get_no_probes(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    api = control_plane.api
    api.create(mpi_job("train", namespace))
    launcher, workers = runs(api, namespace, "train")
    for pod, owner in (
        (launcher, ("Job", "train-launcher")),
        *((each, ("MPIJob", "train")) for each in workers),
    ):
        (controller,) = [each for each in pod["metadata"]["ownerReferences"] if each.get("controller")]
        assert (controller["kind"], controller["name"]) == owner
        assert probes(pod) == set()
    for worker in workers:
        containers = worker["spec"]["containers"]
        assert [each["name"] for each in containers] == ["worker", "agent"]
        assert containers[0]["command"] == ["/usr/sbin/sshd", "-De"], "written by the operator"
        assert worker["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
        assert any(each.get("key") == "nvidia.com/gpu" for each in worker["spec"]["tolerations"])
    job = api.get("jobs", "train-launcher", namespace)
    assert "podFailurePolicy" not in job["spec"], "the launcher's Job is the operator's"


def test_the_operator_writes_no_more_once_the_job_runs_and_then_completes(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    api = control_plane.api
    api.create(mpi_job("first", namespace))
    launcher, _ = runs(api, namespace, "first")
    before = versions(api, namespace, WRITTEN)
    # By the time that another job runs, the operator would have written again.
    api.create(mpi_job("second", namespace))
    runs(api, namespace, "second")
    after = versions(api, namespace, WRITTEN)
    assert {key: after.get(key) for key in before} == before
    end(api, launcher)
    api.wait(
        JOBS,
        "first",
        lambda it: any(
            each["type"] == "Succeeded" and each["status"] == "True" for each in it["status"]["conditions"]
        ),
        namespace=namespace,
        timeout=120,
    )


def test_a_launcher_that_waits_for_ready_workers_is_made(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    """Nothing that is added delays the readiness of workers."""
    api = control_plane.api
    api.create(mpi_job("waits", namespace, launcherCreationPolicy="WaitForWorkersReady"))
    for worker in members(api, namespace, "waits", "worker", 2):
        run(api, worker, answers=False)
    assert members(api, namespace, "waits", "launcher", 1)
