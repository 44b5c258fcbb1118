"""Jobs and pods in the real Kueue's queues: the webhook's fields stay, Kueue does not fight them, and it
admits what the rule on queues lets pass."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.api import JSON, Api
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.operators import (
    KUEUE,
    Operator,
    bound,
    bound_pods,
    end,
    first_of_two,
    new_pods,
    own_node,
    place,
    run,
)
from tests.e2e.status import has_condition

pytestmark = [pytest.mark.e2e, pytest.mark.operators]

QUEUE = "kueue.x-k8s.io/queue-name"
WORKLOADS = "workloads.kueue.x-k8s.io"
WRITTEN = ("jobs", "pods", WORKLOADS)
(TOLERATION,) = place("queues")["tolerations"]
DEMAND = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}


@pytest.fixture(scope="module")
def operator(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    with Operator(KUEUE, control_plane, tmp_path_factory.mktemp("kueue")) as running:
        # Its webhooks answer some time after its first controller has started.
        running.process.wait_until(lambda: _answers(control_plane.api), interval=0.5)
        # The node is removed with its pods while Kueue still removes finalizers.
        with own_node(control_plane, "queues"):
            yield running


@pytest.fixture
def queue(control_plane: ControlPlane, operator: Operator, namespace: str) -> Iterator[str]:
    """A queue of the test's namespace, with quota for nodes of one flavor."""
    api = control_plane.api
    flavor: JSON = {"nodeLabels": {"queues": "yes"}, "tolerations": [TOLERATION]}
    quota = [{"name": name, "nominalQuota": "64"} for name in ("cpu", "nvidia.com/gpu")]
    group = {
        "coveredResources": ["cpu", "nvidia.com/gpu", "memory"],
        "flavors": [{"name": namespace, "resources": [*quota, {"name": "memory", "nominalQuota": "64Gi"}]}],
    }
    create(api, "ResourceFlavor", {"name": namespace}, flavor)
    create_queue(api, "training", namespace, namespace, {"namespaceSelector": {}, "resourceGroups": [group]})
    yield "training"
    for kind in ("clusterqueues", "resourceflavors"):
        api.delete(f"{kind}.kueue.x-k8s.io", namespace)


@pytest.fixture
def queue_without_selector(control_plane: ControlPlane, queue: str, namespace: str) -> Iterator[str]:
    """A queue with the same quota whose ClusterQueue has no namespaceSelector."""
    api, kinds = control_plane.api, "clusterqueues.kueue.x-k8s.io"
    groups = api.get(kinds, namespace)["spec"]["resourceGroups"]
    name = f"{namespace}-closed"
    create_queue(api, "closed", namespace, name, {"resourceGroups": groups})
    yield "closed"
    api.delete(kinds, name)


def create_queue(api: Api, name: str, namespace: str, cluster_queue: str, spec: JSON) -> None:
    """A LocalQueue and its ClusterQueue, once both are active."""
    create(api, "ClusterQueue", {"name": cluster_queue}, spec)
    create(api, "LocalQueue", {"name": name, "namespace": namespace}, {"clusterQueue": cluster_queue})
    api.wait("localqueues.kueue.x-k8s.io", name, has_condition("Active"), namespace=namespace, timeout=120)


def create(api: Api, kind: str, metadata: JSON, spec: JSON) -> None:
    api.create({"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": kind, "metadata": metadata, "spec": spec})


def _answers(api: Api) -> bool:
    pod: JSON = {"apiVersion": "v1", "kind": "Pod", "spec": pod_spec()}
    pod["metadata"] = {"name": "asks", "namespace": "default", "labels": {QUEUE: "none"}}
    suspended = api.create(job("asks", "default", "none"), dry_run=True).body["spec"].get("suspend")
    return suspended is True and "schedulingGates" in api.create(pod, dry_run=True).body["spec"]


def pod_spec(demand: JSON = DEMAND) -> JSON:
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "resources": {"requests": demand, "limits": demand},
    }
    return {"restartPolicy": "Never", "containers": [container]}


def job(name: str, namespace: str, queue: str, demand: JSON = DEMAND) -> JSON:
    metadata = {"name": name, "namespace": namespace, "labels": {QUEUE: queue}}
    spec = {"template": {"spec": pod_spec(demand)}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def running(api: Api, namespace: str, name: str, *, besides: str = "") -> JSON:
    """The Job's pod once it is bound, another than the one with that uid; it then runs."""
    labels = f"batch.kubernetes.io/job-name={name}"
    (pod,) = new_pods(api, labels, besides={besides}, namespace=namespace)
    run(api, pod)
    api.wait("jobs", name, lambda it: it["status"].get("ready") == 1, namespace=namespace, timeout=120)
    return pod


def check(pod: JSON) -> None:
    """Kueue's placement and the webhook's fields are both there."""
    assert pod["spec"]["nodeSelector"]["queues"] == "yes"
    assert TOLERATION in pod["spec"]["tolerations"]
    assert any(each.get("key") == "nvidia.com/gpu" for each in pod["spec"]["tolerations"])
    assert pod["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
    assert pod["spec"]["containers"][0]["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_a_job_of_a_queue_keeps_its_retries_and_is_admitted_once(
    control_plane: ControlPlane, chassis: Chassis, queue: str, namespace: str
) -> None:
    api = control_plane.api

    def runs(name: str) -> JSON:
        created = api.create(job(name, namespace, queue)).body
        assert created["spec"]["suspend"] is True, "Kueue's webhook saw it"
        return running(api, namespace, name)

    check(first_of_two(api, namespace, WRITTEN, runs))
    assert len(api.items(WORKLOADS, namespace)) == 2, "one for each Job: none was made again"
    spec = api.get("jobs", "first", namespace)["spec"]
    assert spec["podFailurePolicy"]["rules"][0]["action"] == "Ignore"
    assert spec["podReplacementPolicy"] == "Failed"


def test_an_evicted_job_comes_back_with_the_same_fields(
    control_plane: ControlPlane, chassis: Chassis, queue: str, namespace: str
) -> None:
    api = control_plane.api
    api.create(job("evicted", namespace, queue))
    old = running(api, namespace, "evicted")
    (workload,) = api.items(WORKLOADS, namespace)
    name = workload["metadata"]["name"]
    api.patch(WORKLOADS, name, {"spec": {"active": False}}, namespace)
    api.wait("jobs", "evicted", lambda it: it["spec"]["suspend"], namespace=namespace, timeout=120)
    api.delete("pods", old["metadata"]["name"], namespace, grace=0)  # as the kubelet ends it
    api.patch(WORKLOADS, name, {"spec": {"active": True}}, namespace)
    check(running(api, namespace, "evicted", besides=old["metadata"]["uid"]))
    (again,) = api.items(WORKLOADS, namespace)
    assert again["metadata"]["uid"] == workload["metadata"]["uid"]
    assert "podFailurePolicy" in api.get("jobs", "evicted", namespace)["spec"]


def test_a_pod_that_waits_at_a_gate_is_let_through_with_its_changes(
    control_plane: ControlPlane, chassis: Chassis, queue: str, namespace: str
) -> None:
    api = control_plane.api
    metadata = {"name": "single", "namespace": namespace, "labels": {QUEUE: queue}}
    created = api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec()}).body
    assert {"name": "kueue.x-k8s.io/admission"} in created["spec"]["schedulingGates"]
    pod = api.wait("pods", "single", bound, namespace=namespace, timeout=120)
    assert pod["spec"]["nodeSelector"]["queues"] == "yes"
    assert any(each.get("key") == "nvidia.com/gpu" for each in pod["spec"]["tolerations"])
    assert created["metadata"]["annotations"].items() <= pod["metadata"]["annotations"].items()
    # Its finalizer is Kueue's, which removes it once the pod has ended.
    api.delete("pods", "single", namespace, grace=0)


def test_a_group_of_gated_pods_is_let_through_as_one(
    control_plane: ControlPlane, chassis: Chassis, queue: str, namespace: str
) -> None:
    """Kueue hashes the shape of each pod, affinity and tolerations included: pods of one hash are one set."""
    api = control_plane.api
    metadata: JSON = {
        "namespace": namespace,
        "labels": {QUEUE: queue, "kueue.x-k8s.io/pod-group-name": "pair"},
        "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"},
    }
    for name in ("pair-0", "pair-1"):
        api.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "name": name}, "spec": pod_spec()}
        )
    pods = bound_pods(api, namespace, "kueue.x-k8s.io/pod-group-name=pair", 2)
    assert len({pod["metadata"]["annotations"]["kueue.x-k8s.io/role-hash"] for pod in pods}) == 1
    (workload,) = api.items(WORKLOADS, namespace)
    assert [each["count"] for each in workload["spec"]["podSets"]] == [2]
    for pod in pods:
        assert any(each.get("key") == "nvidia.com/gpu" for each in pod["spec"]["tolerations"])
        end(api, pod)
    api.wait(
        WORKLOADS, workload["metadata"]["name"], has_condition("Finished"), namespace=namespace, timeout=120
    )


def refusals(workloads: list[JSON]) -> list[str]:
    """Why Kueue has reserved no quota for workloads, as far as it has said so."""
    return sorted(
        condition["message"]
        for each in workloads
        for condition in each.get("status", {}).get("conditions", ())
        if (condition["type"], condition["status"]) == ("QuotaReserved", "False")
    )


def test_the_rule_on_queues_agrees_with_kueue(
    control_plane: ControlPlane, chassis: Chassis, queue: str, queue_without_selector: str, namespace: str
) -> None:
    """Jobs with the warning stay suspended; the sound one of the same queue, created last, is admitted."""
    api, rule = control_plane.api, "queue-never-admits"
    chassis.restart()  # it lists Kueue's objects now that they are served, without a pause
    jobs = [
        job("large", namespace, queue, {**DEMAND, "nvidia.com/gpu": "65"}),
        job("nowhere", namespace, "trainning"),
        job("uncovered", namespace, queue, {**DEMAND, "ephemeral-storage": "1Gi"}),
        job("unselected", namespace, queue_without_selector),
    ]

    def warns(item: JSON) -> bool:
        return any(rule in warning for warning in api.create(item, dry_run=True).warnings)

    chassis.process.wait_until(lambda: all(map(warns, jobs)), interval=0.5)
    assert not warns(job("sound", namespace, queue))
    for bad in jobs:
        api.create(bad)
    found = api.wait_for(
        WORKLOADS, lambda found: len(refusals(found)) == len(jobs), namespace=namespace, timeout=120
    )
    said = "\n".join(refusals(found))
    for reason in ("trainning", "65 > 64", "ephemeral-storage unavailable", "namespace doesn't match"):
        assert reason in said
    api.create(job("sound", namespace, queue))
    running(api, namespace, "sound")
    for bad in jobs:
        left = api.get("jobs", bad["metadata"]["name"], namespace)
        assert left["spec"]["suspend"] is True
        assert not left["status"].get("active")
