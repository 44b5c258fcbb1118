"""gpu-affinity before the real scheduler: where pods land with the webhook, and where without it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from tests.e2e import workloads
from tests.e2e.api import JSON, ApiError
from tests.e2e.controlplane import LEFT_ALONE, ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.status import unschedulable
from tests.e2e.workloads import container

pytestmark = pytest.mark.e2e

PRODUCT, MEMORY = "mlchassis.dev/gpu-product", "mlchassis.dev/gpu-memory"
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
POOL = """\
pools:
  - name: h100
    labels: {pool: h100}
    accelerators: {nvidia.com/gpu: 8}
    product: NVIDIA-H100-80GB-HBM3
    taints: [{key: nvidia.com/gpu, value: present}]
"""


def labels_of(product: str, memory: int, **more: str) -> dict[str, str]:
    """The labels of GPU Feature Discovery."""
    labels = {"gpu.present": "true", "gpu.product": product, "gpu.memory": str(memory)}
    return {f"nvidia.com/{key}": value for key, value in labels.items()} | more


@dataclass
class Cluster:
    """A mixed cluster, a namespace with the webhook and one without, and the pods made in them."""

    control_plane: ControlPlane
    namespace: str
    bare_namespace: str
    made: list[tuple[str, str]] = field(default_factory=list)

    def create(self, item: JSON, *, webhook: bool = True) -> JSON:
        namespace = self.namespace if webhook else self.bare_namespace
        made = self.control_plane.api.create(item, namespace).body
        self.made.append((namespace, made["metadata"]["name"]))
        return made

    def lands(self, item: JSON, *, webhook: bool = True) -> str:
        """The node that the scheduler gives the pod to; empty where it finds none."""
        made = self.create(item, webhook=webhook)["metadata"]
        return self.node_of(made["name"], made["namespace"])

    def node_of(self, name: str, namespace: str) -> str:
        pod = self.control_plane.api.wait("pods", name, _decided, namespace=namespace)
        return str(pod["spec"].get("nodeName", ""))

    def clear(self) -> None:
        """Remove the pods and wait until they hold nothing."""
        for namespace, name in self.made:
            self.control_plane.api.delete("pods", name, namespace, grace=0)
        for namespace in {namespace for namespace, _ in self.made}:
            self.control_plane.api.wait_for("pods", lambda pods: not pods, namespace=namespace)
        self.made.clear()


def _decided(pod: JSON) -> bool:
    return unschedulable(pod) or bool(pod["spec"].get("nodeName"))


def pod(name: str, gpus: int = 1, *, cpu: str = "1", annotations: JSON | None = None, **spec: object) -> JSON:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    resources = {"requests": {"cpu": cpu, **limits}, "limits": limits}
    main = container("registry.example/train:1", None, resources=resources)
    made = workloads.pod(name, main, restartPolicy="Never", **spec)
    made["metadata"]["annotations"] = annotations or {}
    return made


@pytest.fixture(scope="module")
def mixed(control_plane: ControlPlane, chassis: Chassis) -> Iterator[Cluster]:
    """Two GPU products, one tainted; a GPU node without labels; CPU nodes; a declared pool without nodes."""
    cluster = Cluster(control_plane, f"gpu-{uuid.uuid4().hex[:8]}", f"gpu-{uuid.uuid4().hex[:8]}")
    control_plane.create_namespace(cluster.namespace)
    control_plane.create_namespace(cluster.bare_namespace, LEFT_ALONE)
    a100 = labels_of("NVIDIA-A100-SXM4-80GB", 81920, disk="ssd")
    control_plane.add_node("a100", a100, [TAINT], {"nvidia.com/gpu": "8"})
    control_plane.add_node("t4", labels_of("Tesla-T4", 15360, zone="a"), (), {"nvidia.com/gpu": "4"})
    control_plane.add_node("bare", {}, (), {"nvidia.com/gpu": "4"})
    control_plane.add_node("cpu-1")
    try:
        with chassis.policy_restored():
            control_plane.apply(chassis.policy_with(gpu_affinity=POOL))
            # The pools are in force when a pod that requests more than any pool has is refused.
            chassis.process.wait_until(lambda: _is_refused(cluster, pod("probe", 16)))
            yield cluster
    finally:
        for name in ("a100", "t4", "bare", "cpu-1", "h100"):
            if control_plane.api.exists("nodes", name):
                control_plane.api.delete("nodes", name)
        for namespace in (cluster.namespace, cluster.bare_namespace):
            control_plane.api.delete("namespaces", namespace)
        chassis.process.wait_until(lambda: not _is_refused(cluster, pod("probe", 16)))


def _is_refused(cluster: Cluster, item: JSON) -> bool:
    try:
        cluster.control_plane.api.create(item, "default", dry_run=True)
    except ApiError as error:
        return "gpu-unschedulable" in error.message
    return False


@pytest.fixture
def cluster(mixed: Cluster) -> Iterator[Cluster]:
    yield mixed
    mixed.clear()


@pytest.mark.parametrize(
    ("item", "with_webhook", "without"),
    [
        (pod("product", annotations={PRODUCT: "*a100*"}), {"a100"}, {"t4", "bare"}),
        (pod("memory", annotations={MEMORY: ">=40G"}), {"a100"}, {"t4", "bare"}),
        (pod("eight", 8), {"a100"}, {""}),
        (pod("exact", annotations={PRODUCT: "Tesla-T4"}), {"t4"}, {"t4", "bare"}),
        (pod("cpu", 0), {"node-0", "cpu-1"}, {"node-0", "cpu-1", "t4", "bare"}),
    ],
    ids=lambda value: value["metadata"]["name"] if isinstance(value, dict) else None,
)
def test_a_pod_lands_on_the_right_node(
    cluster: Cluster, item: JSON, with_webhook: set[str], without: set[str]
) -> None:
    assert cluster.lands(item) in with_webhook
    assert cluster.lands(item, webhook=False) in without


def test_a_gpu_node_without_labels_is_not_lost(cluster: Cluster) -> None:
    assert cluster.lands(pod("eight", 8)) == "a100"
    assert cluster.lands(pod("four", 4)) == "t4", "labelled nodes are preferred"
    assert cluster.lands(pod("four-more", 4)) == "bare", "a demand for the label would leave it Pending"


def test_cpu_pods_leave_gpu_nodes_free(cluster: Cluster) -> None:
    names = [f"api-{n}" for n in range(8)]
    with_webhook = [cluster.lands(pod(name, 0, cpu="12")) for name in names]
    assert set(with_webhook) == {"node-0", "cpu-1"}
    cluster.clear()
    without = [cluster.lands(pod(name, 0, cpu="12"), webhook=False) for name in names]
    assert {"t4", "bare"} & set(without), "the scheduler spreads them over the GPU nodes as well"


def test_cpu_pods_take_gpu_nodes_when_no_other_is_left(cluster: Cluster) -> None:
    # One to a node of 64; the rest leaves room for what other tests still have on node-0.
    landed = [cluster.lands(pod(f"big-{n}", 0, cpu="40")) for n in range(4)]
    assert set(landed) == {"node-0", "cpu-1", "t4", "bare"}, "a preference is no outage"


def test_a_pod_waits_for_the_declared_pool_and_gets_its_node(cluster: Cluster) -> None:
    waiting = pod("pretraining", 8, annotations={PRODUCT: "*H100*"})
    assert cluster.lands(waiting) == "", "an A100 is free, but it is not what was asked for"
    # The bare one asks only for eight GPUs, and would tolerate no taint.
    labels = labels_of("NVIDIA-H100-80GB-HBM3", 81559, pool="h100")
    cluster.control_plane.add_node("h100", labels, [TAINT], {"nvidia.com/gpu": "8"})
    bound = cluster.control_plane.api.wait(
        "pods", "pretraining", lambda it: bool(it["spec"].get("nodeName")), namespace=cluster.namespace
    )
    assert bound["spec"]["nodeName"] == "h100"
    cluster.clear()
    cluster.control_plane.api.delete("nodes", "h100")


@pytest.mark.parametrize(
    ("item", "missing"),
    [
        (pod("sixteen", 16), ("16 nvidia.com/gpu", "8 (a100)")),
        (pod("product", annotations={PRODUCT: "*B200*"}), ("*B200*", "Tesla-T4")),
        (pod("memory", annotations={MEMORY: ">=200Gi"}), (">=204800Mi", "81920Mi")),
        (
            pod("selector", nodeSelector={"nvidia.com/gpu.product": "Tesla-V100"}),
            ("nvidia.com/gpu.product=Tesla-V100",),
        ),
    ],
    ids=lambda value: value["metadata"]["name"] if isinstance(value, dict) else None,
)
def test_the_refusal_of_a_pod_that_no_node_could_take_names_the_missing_label(
    cluster: Cluster, item: JSON, missing: tuple[str, ...]
) -> None:
    with pytest.raises(ApiError) as refused:
        cluster.create(item)
    assert refused.value.status == 403
    message = " ".join(refused.value.message.split())  # it is wrapped for a terminal
    for words in ("gpu-unschedulable", *missing):
        assert words in message
    assert cluster.lands(item, webhook=False) in ("", "t4", "bare"), "without it, Pending or the wrong GPU"


def test_two_terms_of_the_users_own_keep_both_meanings(cluster: Cluster) -> None:
    terms = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
        {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]},
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    item: Callable[[str], JSON] = lambda name: pod(  # noqa: E731
        name, 4, annotations={PRODUCT: "*"}, affinity={"nodeAffinity": required}
    )
    landed = [cluster.lands(item(f"worker-{n}")) for n in range(4)]
    # Four GPUs in zone a, eight behind the term about the disk; `bare` has room and fits neither.
    assert sorted(landed) == ["", "a100", "a100", "t4"]


def test_workers_of_one_group_share_a_node(cluster: Cluster) -> None:
    def worker(number: int) -> JSON:
        made = pod(f"worker-{number}", cpu="12", annotations={"mlchassis.dev/topology": "same-node required"})
        made["metadata"]["labels"] = {"batch.kubernetes.io/job-name": "pretraining"}
        return made

    assert len({cluster.lands(worker(n)) for n in range(3)}) == 1
    cluster.clear()
    spread = {cluster.lands(worker(n), webhook=False) for n in range(3)}
    assert spread == {"t4", "bare"}, "the scheduler prefers the emptier node"


def test_a_rollout_without_room_for_the_surge_pod_is_refused(cluster: Cluster) -> None:
    template = pod("llm", 4, annotations={PRODUCT: "Tesla-T4"})
    deployment = workloads.workload("Deployment", "llm", *template["spec"]["containers"])
    deployment["spec"]["template"]["metadata"]["annotations"] = template["metadata"]["annotations"]
    with pytest.raises(ApiError, match="rollout-gpu-deadlock"):
        cluster.control_plane.api.create(deployment, cluster.namespace, dry_run=True)
    deployment["spec"]["strategy"] = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    cluster.control_plane.api.create(deployment, cluster.namespace, dry_run=True)
