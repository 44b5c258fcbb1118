"""Launchers and workers of the real MPI operator: the pods it makes, and that it keeps added fields."""

from __future__ import annotations

import pytest

from tests.e2e.api import JSON, Api
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.operators import (
    MPI,
    Operator,
    bound_pods,
    drain,
    end,
    first_of_two,
    fixture,
    new_pods,
    place,
    run,
    uid,
)
from tests.e2e.status import has_condition
from tests.e2e.workloads import probes
from tests.manifests import manifest

pytestmark = [pytest.mark.e2e, pytest.mark.operators]

WRITTEN = ("pods", "jobs", "services", "configmaps", "secrets", "mpijobs.kubeflow.org")
JOBS = "mpijobs.kubeflow.org"
ROLE = "training.kubeflow.org/job-role"


operator = fixture("mpi", MPI)


def mpi_job(name: str, namespace: str, **spec: object) -> JSON:
    """A launcher and two workers, each of which has a port and an agent after it."""

    def replica(count: int, *containers: JSON) -> JSON:
        pod = {"containers": list(containers), **place("mpi")}
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
    return manifest(
        "MPIJob",
        name,
        {"mpiReplicaSpecs": replicas, "runPolicy": {"cleanPodPolicy": "None"}, **spec},
        namespace=namespace,
    )


def members(api: Api, namespace: str, name: str, role: str, count: int) -> list[JSON]:
    return bound_pods(api, namespace, f"training.kubeflow.org/job-name={name},{ROLE}={role}", count)


def runs(api: Api, namespace: str, name: str) -> tuple[JSON, list[JSON]]:
    """Let all pods of a new job run, workers first, and wait until the operator has seen that it runs."""
    api.create(mpi_job(name, namespace))
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
        return active == [1, 2] and has_condition("Running")(job)

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
    launcher, _ = first_of_two(api, namespace, WRITTEN, lambda name: runs(api, namespace, name))
    end(api, launcher)
    api.wait(JOBS, "first", has_condition("Succeeded"), namespace=namespace, timeout=120)


def test_a_launcher_that_waits_for_ready_workers_is_made(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    """Nothing that is added delays the readiness of workers."""
    api = control_plane.api
    api.create(mpi_job("waits", namespace, launcherCreationPolicy="WaitForWorkersReady"))
    for worker in members(api, namespace, "waits", "worker", 2):
        run(api, worker, answers=False)
    assert members(api, namespace, "waits", "launcher", 1)


# --- retries and ends, as `lifecycles.yaml` has them -------------------------------------------------------


def next_launcher(api: Api, namespace: str, name: str, before: JSON) -> JSON:
    """The launcher that replaces another one."""
    labels = f"training.kubeflow.org/job-name={name},{ROLE}=launcher"
    (pod,) = new_pods(api, labels, besides={uid(before)}, namespace=namespace)
    return pod


def test_a_launcher_that_starts_early_uses_up_its_retries_while_no_worker_runs(
    control_plane: ControlPlane, operator: Operator, bare: str
) -> None:
    """As launcher-starts-early says. An eviction of the launcher counts like such a failure."""
    api = control_plane.api
    policy = {"cleanPodPolicy": "None", "backoffLimit": 1}
    api.create(mpi_job("early", bare, runPolicy=policy))
    members(api, bare, "early", "worker", 2)  # bound, and they pull their image
    (launcher,) = members(api, bare, "early", "launcher", 1)
    end(api, launcher, {"launcher": 1})
    launcher = next_launcher(api, bare, "early", launcher)
    with drain(api, launcher):
        api.wait(JOBS, "early", has_condition("Failed"), namespace=bare, timeout=60)


def test_a_drained_worker_is_replaced_and_an_evicted_one_fails_the_job(
    control_plane: ControlPlane, operator: Operator, bare: str
) -> None:
    api = control_plane.api
    _, (first, second) = runs(api, bare, "train")
    with drain(api, first):
        pass
    labels = f"training.kubeflow.org/job-name=train,{ROLE}=worker"
    (again,) = new_pods(api, labels, besides={uid(first), uid(second)}, namespace=bare)
    assert again["metadata"]["name"] == first["metadata"]["name"]
    assert not has_condition("Failed")(api.get(JOBS, "train", bare))
    status = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    api.patch("pods", second["metadata"]["name"], {"status": status}, bare, "status")
    api.wait(JOBS, "train", has_condition("Failed"), namespace=bare, timeout=60)


@pytest.mark.parametrize(
    ("policy", "helped", "left"),
    [(None, False, 2), ("Running", False, 0), (None, True, 0)],
    ids=["default", "Running", "default with the webhook"],
)
def test_the_workers_outlive_the_launcher_unless_a_policy_deletes_them(
    policy: str | None,
    helped: bool,
    left: int,
    control_plane: ControlPlane,
    chassis: Chassis,
    operator: Operator,
    bare: str,
    namespace: str,
) -> None:
    """As pods-outlive-run says: the daemon in a worker never ends."""
    api, where = control_plane.api, namespace if helped else bare
    api.create(mpi_job("ends", where, runPolicy={"cleanPodPolicy": policy} if policy else {}))
    for worker in members(api, where, "ends", "worker", 2):
        run(api, worker)
    (launcher,) = members(api, where, "ends", "launcher", 1)
    run(api, launcher)
    end(api, launcher)
    api.wait(JOBS, "ends", has_condition("Succeeded"), namespace=where, timeout=60)
    api.wait_for(
        "pods",
        lambda pods: sum("deletionTimestamp" not in pod["metadata"] for pod in pods) == left,
        namespace=where,
        labels=f"{ROLE}=worker",
        timeout=60,
    )
    # Whatever it does at the end, it has done by the time that another job runs.
    runs(api, where, "later")
    workers = api.items("pods", where, f"{ROLE}=worker,training.kubeflow.org/job-name=ends")
    assert sum("deletionTimestamp" not in pod["metadata"] for pod in workers) == left
