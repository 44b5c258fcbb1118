"""Pods of the real JobSet operator: how they arrive, and that the operator leaves what the webhook adds."""

from __future__ import annotations

import pytest

from tests.e2e.api import JSON, Api
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.operators import (
    JOB_SET,
    TRAINING,
    Operator,
    added,
    bound_pods,
    first_of_two,
    fixture,
    place,
    plain_and_changed,
    run,
)
from tests.e2e.workloads import probes
from tests.manifests import manifest

pytestmark = pytest.mark.e2e

SET = "jobset.sigs.k8s.io/jobset-name"
ROLE = "jobset.sigs.k8s.io/replicatedjob-name"
WRITTEN = ("pods", "jobs", "services", "jobsets.jobset.x-k8s.io")


operator = fixture("job-sets", JOB_SET)


def job_set(name: str, namespace: str, **spec: object) -> JSON:
    """A leader that serves with its workers, and the two workers, each next to an agent."""

    def replicated(role: str, parallelism: int, *containers: JSON) -> JSON:
        pod = {"restartPolicy": "Never", "containers": list(containers), **place("job-sets")}
        job = {"parallelism": parallelism, "completions": parallelism, "backoffLimit": 0}
        return {"name": role, "template": {"spec": {**job, "template": {"spec": pod}}}}

    gpu = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    leader = {
        "name": "sglang",
        "image": "lmsysorg/sglang:v0.5.3",
        "command": ["python3", "-m", "sglang.launch_server"],
        "args": ["--model-path", "m", "--nnodes", "3", "--node-rank", "0", "--port", "30000"],
        "ports": [{"containerPort": 30000}],
        **gpu,
    }
    worker = {"name": "worker", "image": "registry.example/train:1", **gpu}
    agent = {"name": "agent", "image": "registry.example/agent:1"}
    return manifest(
        "JobSet",
        name,
        {"replicatedJobs": [replicated("leader", 1, leader), replicated("workers", 2, agent, worker)]} | spec,
        namespace=namespace,
    )


def members(api: Api, namespace: str, name: str, role: str, count: int) -> list[JSON]:
    return bound_pods(api, namespace, f"{SET}={name},{ROLE}={role}", count)


def everyone(api: Api, namespace: str, name: str) -> tuple[JSON, list[JSON]]:
    (leader,) = members(api, namespace, name, "leader", 1)
    return leader, members(api, namespace, name, "workers", 2)


def runs(api: Api, namespace: str, name: str) -> list[JSON]:
    """Let all pods of a new set run, and wait until the operator has counted its Jobs as ready."""
    api.create(job_set(name, namespace))
    leader, workers = everyone(api, namespace, name)
    for pod in (leader, *workers):
        run(api, pod)
    counted = api.wait(
        "jobsets.jobset.x-k8s.io",
        name,
        lambda it: [role["ready"] for role in it.get("status", {}).get("replicatedJobsStatus", ())] == [1, 1],
    )
    assert not counted["status"].get("restarts")
    return [leader, *workers]


def test_pods_arrive_as_children_of_jobs_and_get_no_probes(
    api: Api, control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:

    def made(namespace: str) -> tuple[JSON, list[JSON]]:
        api.create(job_set("train", namespace))
        return everyone(api, namespace, "train")

    plain, changed = plain_and_changed(control_plane, namespace, made)
    leader, workers = changed
    for pod, role, index in (
        (leader, "leader", "0"),
        (workers[0], "workers", "0"),
        (workers[1], "workers", "1"),
    ):
        metadata = pod["metadata"]
        (owner,) = metadata["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("Job", f"train-{role}-0", True)
        assert metadata["name"].startswith(f"train-{role}-0-{index}-"), (
            "Indexed, with a suffix of the API server"
        )
        assert {SET: "train", ROLE: role, "jobset.sigs.k8s.io/job-index": "0"}.items() <= metadata[
            "labels"
        ].items()
    assert [each["name"] for each in workers[0]["spec"]["containers"]] == ["agent", "worker"]
    assert probes(leader) == probes(workers[0]) == probes(workers[0], 1) == set()

    for before, after in ((plain[0], leader), (plain[1][0], workers[0])):
        # The API server has set the other field, terminationMessagePolicy, before the webhook changed it.
        assert added(before, after) == TRAINING
        for container in after["spec"]["containers"]:
            assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
    for job in api.items("jobs"):
        assert "podFailurePolicy" not in job["spec"], "a failed member has to fail its Job, and so the set"


def test_the_operator_writes_no_more_once_the_set_runs(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    api = control_plane.api
    first_of_two(api, namespace, WRITTEN, lambda name: runs(api, namespace, name))


def test_workers_that_wait_for_their_leader_are_made(
    api: Api, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    """With InOrder the workers are made when the leader is Ready, and the leader serves only with them."""
    api.create(job_set("ordered", namespace, startupPolicy={"startupPolicyOrder": "InOrder"}))
    (leader,) = members(api, namespace, "ordered", "leader", 1)
    run(api, leader, answers=False)
    assert len(members(api, namespace, "ordered", "workers", 2)) == 2
