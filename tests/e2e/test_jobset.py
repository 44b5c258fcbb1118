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
    drain,
    end,
    first_of_two,
    fixture,
    new_pods,
    place,
    plain_and_changed,
    run,
    uid,
)
from tests.e2e.status import has_condition
from tests.e2e.workloads import probes
from tests.manifests import manifest

pytestmark = pytest.mark.e2e

SET = "jobset.sigs.k8s.io/jobset-name"
ROLE = "jobset.sigs.k8s.io/replicatedjob-name"
SETS = "jobsets.jobset.x-k8s.io"
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


# --- retries, as `lifecycles.yaml` has them ----------------------------------------------------------------


ON_EVICTION = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
FREE_RESTART = {
    "name": "evictions",
    "action": "RestartJobSetAndIgnoreMaxRestarts",
    "onJobFailureReasons": ["PodFailurePolicy"],
}


def trains(name: str, *, gpus: int = 0, failure: JSON | None = None, **job: object) -> JSON:
    """One pod, which nothing retries in its Job."""
    container: JSON = {"name": "train", "image": "registry.example/train:1"}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    pod = {"restartPolicy": "Never", "containers": [container], **place("job-sets")}
    spec = {"backoffLimit": 0, "template": {"spec": pod}, **job}
    policy = {} if failure is None else {"failurePolicy": failure}
    return manifest(
        "JobSet", name, {"replicatedJobs": [{"name": "node", "template": {"spec": spec}}]} | policy
    )


def next_pod(api: Api, name: str, before: JSON | None = None) -> JSON:
    """The pod of the set that is bound, another than the one before it."""
    (pod,) = new_pods(api, f"{SET}={name}", besides=() if before is None else {uid(before)})
    run(api, pod)
    return pod


def evict(api: Api, pod: JSON) -> None:
    with drain(api, pod):
        pass


failed = has_condition("Failed")


def test_an_eviction_ends_a_set_without_a_failure_policy_unless_the_webhook_repairs_its_jobs(
    api: Api, control_plane: ControlPlane, chassis: Chassis, operator: Operator, bare: str
) -> None:
    unhelped = control_plane.api.within(bare)
    for client in (unhelped, api):
        client.create(trains("train"))
    evict(unhelped, next_pod(unhelped, "train"))
    unhelped.wait(SETS, "train", failed)

    first = next_pod(api, "train")
    evict(api, first)
    second = next_pod(api, "train", first)
    job_set = api.get(SETS, "train")
    assert not failed(job_set)
    assert not job_set["status"].get("restarts")
    assert api.get("jobs", "train-node-0")["spec"]["podFailurePolicy"]["rules"][0]["action"] == "Ignore"
    end(api, second)
    api.wait(SETS, "train", has_condition("Completed"))


def test_evictions_use_up_the_restarts_of_a_set_unless_a_rule_leaves_them_out(
    api: Api, control_plane: ControlPlane, chassis: Chassis, operator: Operator
) -> None:
    """As job-lost-on-eviction says, and so is its fix."""
    rule = "job-lost-on-eviction"
    counted = trains("counted", gpus=1, failure={"maxRestarts": 1})
    free = trains(
        "free",
        gpus=1,
        failure={"maxRestarts": 1, "rules": [FREE_RESTART]},
        podFailurePolicy={"rules": [ON_EVICTION]},
    )
    assert rule in " ".join(api.create(counted).warnings)
    assert rule not in " ".join(api.create(free).warnings)

    pod = next_pod(api, "counted")
    evict(api, pod)
    evict(api, next_pod(api, "counted", pod))
    status = api.wait(SETS, "counted", has_condition("Failed", says="max"))["status"]
    assert (status["restarts"], status["restartsCountTowardsMax"]) == (1, 1)

    pod = next_pod(api, "free")
    for _ in range(3):
        evict(api, pod)
        pod = next_pod(api, "free", pod)
    job_set = api.get(SETS, "free")
    assert not failed(job_set)
    assert (job_set["status"]["restarts"], job_set["status"].get("restartsCountTowardsMax", 0)) == (3, 0)
    end(api, pod, {"train": 1})
    next_pod(api, "free", pod)
    assert api.get(SETS, "free")["status"]["restartsCountTowardsMax"] == 1, "an error of the program counts"


def test_suspended_and_delegated_sets_have_no_pods(
    control_plane: ControlPlane, operator: Operator, bare: str
) -> None:
    api = control_plane.api.within(bare)
    fields: JSON = {
        "delegated": {"managedBy": "kueue.x-k8s.io/multikueue"},
        "suspended": {"suspend": True},
        "own": {},
    }
    for name, field in fields.items():
        made = trains(name)
        made["spec"] |= field
        api.create(made)
    next_pod(api, "own")
    api.wait(SETS, "suspended", has_condition("Suspended"))
    assert {pod["metadata"]["labels"][SET] for pod in api.items("pods")} == {"own"}
