"""Pods of the real JobSet operator: how they arrive, and that the operator leaves what the webhook adds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.api import JSON, Api
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.operators import JOB_SET, Operator, added, bound, run, versions
from tests.e2e.workloads import probes

pytestmark = pytest.mark.e2e

NODE = "node-of-job-sets"
TAINT: JSON = {"key": "job-sets", "effect": "NoSchedule"}
SET = "jobset.sigs.k8s.io/jobset-name"
ROLE = "jobset.sigs.k8s.io/replicatedjob-name"
WRITTEN = ("pods", "jobs", "services", "jobsets.jobset.x-k8s.io")


@pytest.fixture(scope="module")
def operator(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    # Only these tests run the pods of this node: no other pod may be bound to it.
    control_plane.add_node(NODE, {"job-sets": "yes"}, [TAINT], {"nvidia.com/gpu": "64"}, runs_pods=False)
    with Operator(JOB_SET, control_plane, tmp_path_factory.mktemp("jobset")) as running:
        yield running
    control_plane.api.delete("nodes", NODE)


def job_set(name: str, namespace: str, **spec: object) -> JSON:
    """A leader that serves with its workers, and the two workers, each next to an agent."""

    def replicated(role: str, parallelism: int, *containers: JSON) -> JSON:
        pod = {
            "restartPolicy": "Never",
            "nodeSelector": {"job-sets": "yes"},
            "tolerations": [{"key": "job-sets", "operator": "Exists"}],
            "containers": list(containers),
        }
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
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicatedJobs": [replicated("leader", 1, leader), replicated("workers", 2, agent, worker)]}
        | spec,
    }


def members(api: Api, namespace: str, name: str, role: str, count: int) -> list[JSON]:
    """The bound pods of a role."""
    pods = api.wait_for(
        "pods",
        lambda found: len(found) == count and all(map(bound, found)),
        namespace=namespace,
        labels=f"{SET}={name},{ROLE}={role}",
        timeout=60,
    )
    return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))


def everyone(api: Api, namespace: str, name: str) -> tuple[JSON, list[JSON]]:
    (leader,) = members(api, namespace, name, "leader", 1)
    return leader, members(api, namespace, name, "workers", 2)


def runs(api: Api, namespace: str, name: str) -> list[JSON]:
    """Let all pods of a set run, and wait until the operator has counted its Jobs as ready."""
    leader, workers = everyone(api, namespace, name)
    for pod in (leader, *workers):
        run(api, pod)
    counted = api.wait(
        "jobsets.jobset.x-k8s.io",
        name,
        lambda it: [role["ready"] for role in it.get("status", {}).get("replicatedJobsStatus", ())] == [1, 1],
        namespace=namespace,
        timeout=60,
    )
    assert not counted["status"].get("restarts")
    return [leader, *workers]


def test_pods_arrive_as_children_of_jobs_and_get_no_probes(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    api = control_plane.api
    bare = f"{namespace}-bare"
    control_plane.create_namespace(bare, {"mlchassis.dev/admission": "disabled"})
    for place in (bare, namespace):
        api.create(job_set("train", place))
    plain, changed = (everyone(api, place, "train") for place in (bare, namespace))
    api.delete("namespaces", bare)

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
        # Whether affinity is added depends on the nodes that other tests have added.
        assert added(before, after) - {"affinity"} == {
            "annotations.cluster-autoscaler.kubernetes.io/safe-to-evict",
            "annotations.karpenter.sh/do-not-disrupt",
            "annotations.mlchassis.dev/changed",
            "tolerations",
        }
        for container in after["spec"]["containers"]:
            assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
    for job in api.items("jobs", namespace):
        assert "podFailurePolicy" not in job["spec"], "a failed member has to fail its Job, and so the set"


def test_the_operator_writes_no_more_once_the_set_runs(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    api = control_plane.api
    api.create(job_set("first", namespace))
    runs(api, namespace, "first")
    before = versions(api, namespace, WRITTEN)
    # By the time that another set runs, the operator would have written again.
    api.create(job_set("second", namespace))
    runs(api, namespace, "second")
    after = versions(api, namespace, WRITTEN)
    assert {key: after.get(key) for key in before} == before


def test_workers_that_wait_for_their_leader_are_made(
    control_plane: ControlPlane, chassis: Chassis, operator: Operator, namespace: str
) -> None:
    """With InOrder the workers are made when the leader is Ready, and the leader serves only with them."""
    api = control_plane.api
    api.create(job_set("ordered", namespace, startupPolicy={"startupPolicyOrder": "InOrder"}))
    (leader,) = members(api, namespace, "ordered", "leader", 1)
    run(api, leader, answers=False)
    assert len(members(api, namespace, "ordered", "workers", 2)) == 2
