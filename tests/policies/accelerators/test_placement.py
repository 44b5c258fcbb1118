"""Which nodes could take a pod with accelerators, and the obstacle if none could."""

from __future__ import annotations

import pytest

from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.accelerators.placement import Cause, Placement, placement
from policies.accelerators.vendors import Pool
from policies.core.annotations import GPU_MEMORY, GPU_PRODUCT
from policies.core.facts import Facts
from policies.kube.json import Json, replaced
from tests.policies.accelerators.nodes import GPU, facts, labelled, node, pod


def placed(pod: Json, known: Facts) -> Placement | None:
    return placement(known.view(pod), known)


def test_unknown_nodes_have_no_obstacle() -> None:
    assert placed(pod(64), Facts("ml")) is None
    assert placed(pod(64), facts(settings=GpuAffinity(fixed_size=True))) is None


@pytest.mark.parametrize("gpus", [0, "", 4])
def test_too_many_is_certain_only_while_every_gpu_node_gives_something(gpus: int | str) -> None:
    other = node("b", {"nvidia.com/gpu.present": "true"}, gpus)
    found = placed(pod(8), facts(node("a", gpus=4), other))
    assert found is not None
    assert found.obstacle is not None
    assert found.obstacle.cause is Cause.RESOURCES
    assert found.obstacle.certain is (gpus == 4)


def test_room_counts_whole_pods_on_each_node() -> None:
    pool = Pool(name="more", accelerators={GPU: 8}, max_nodes=2)
    nodes = (node("a", gpus=7), node("b", gpus=3), node("c", gpus=1))
    found = placed(pod(3), facts(*nodes, settings=GpuAffinity(pools=(pool,))))
    assert found is not None
    assert found.room(one_each=False) == 2 + 1 + 2 * 2
    assert found.room(one_each=True) == 1 + 1 + 2


AMD = "amd.com/gpu"


def of_both() -> Json:
    return replaced(pod(), ("spec", "containers", 0, "resources", "limits"), {GPU: "1", AMD: "1"})


def of_amd(count: int) -> Json:
    made = node("mi300", {"disk": "ssd"})
    return replaced(made, ("status", "allocatable"), {AMD: str(count)})


BIG = node("big", {"zone": "a", "nvidia.com/gpu.product": "A100", "nvidia.com/gpu.memory": "40536"}, 8)
DEDICATED = node("dedicated", {"zone": "b"}, 4, ({"key": "team", "value": "vision", "effect": "NoSchedule"},))


@pytest.mark.parametrize(
    ("asking", "cause", "message"),
    [
        (of_both(), Cause.RESOURCES, f"No node and no declared pool has {AMD}."),
        (
            pod(9),
            Cause.RESOURCES,
            f"The pod requests 9 {GPU}, but the most that one node has is 8 (big).",
        ),
        (
            pod(annotations={GPU_PRODUCT: "H100,B200"}),
            Cause.PRODUCT,
            f"No node and no declared pool with 1 {GPU} has a product that matches H100, B200.",
        ),
        (
            pod(annotations={GPU_MEMORY: ">=80G"}),
            Cause.MEMORY,
            "None of the other nodes and declared pools has accelerators with >=76293Mi of memory.",
        ),
        (
            pod(nodeSelector={"zone": "c", "disk": "ssd"}),
            Cause.SELECTOR,
            f"None of the 2 nodes and pools with 1 {GPU} has zone=c, disk=ssd.",
        ),
        (
            pod(affinity=labelled("zone NotIn a,b")),
            Cause.SELECTOR,
            f"None of the 2 nodes and pools with 1 {GPU} has zone NotIn a,b.",
        ),
        (
            pod(affinity=labelled("zone In a", "disk Exists")),
            Cause.SELECTOR,
            f"None of the 2 nodes and pools with 1 {GPU} has disk Exists.",
        ),
        (
            pod(nodeSelector={"zone": "a", "kubernetes.io/hostname": "dedicated"}),
            Cause.SELECTOR,
            f"None of the 2 nodes and pools with 1 {GPU} fits its node selector and "
            "required node affinity together.",
        ),
        (
            pod(nodeSelector={"zone": "b"}),
            Cause.TAINTS,
            "Every node that could run the pod has a taint that the pod doesn't tolerate: "
            "team=vision:NoSchedule.",
        ),
    ],
)
def test_the_missing_property_is_named(asking: Json, cause: Cause, message: str) -> None:
    found = placed(asking, facts(BIG, DEDICATED))
    assert found is not None
    assert found.obstacle is not None
    assert (found.obstacle.cause, found.obstacle.message) == (cause, message)


def test_what_no_node_has_together_is_named_together() -> None:
    found = placed(of_both(), facts(BIG, of_amd(8)))
    assert found is not None
    assert found.obstacle is not None
    assert found.obstacle.message == f"No node and no declared pool has 1 {GPU}, 1 {AMD} together."


def test_a_bound_pod_has_its_place() -> None:
    assert placed(pod(9, nodeName="big"), facts(BIG)) is None


def test_an_answer_is_worked_out_once_for_pods_that_ask_the_same() -> None:
    known = facts(BIG)
    first = placed(pod(), known)
    assert placed(pod(), known) is first
    assert placed(pod(2), known) is not first
    long = pod(nodeSelector={"zone": "a" * 5000})
    assert placed(long, known) is not placed(dict(long), known)


@pytest.mark.parametrize(
    ("asking", "names"),
    [
        (pod(), ["big", "small"]),
        (pod(annotations={GPU_PRODUCT: "*100*"}), ["big"]),
        (pod(annotations={GPU_PRODUCT: "T4", GPU_MEMORY: "<20G"}), ["small"]),
        (pod(annotations={GPU_MEMORY: ">=40G"}), ["big"]),
        (pod(annotations={GPU_MEMORY: "lots"}), ["big", "small"]),
        (pod(2, annotations={GPU_PRODUCT: "*"}), ["big"]),
        (pod(nodeSelector={"zone": "a"}), ["big"]),
    ],
)
def test_the_nodes_that_could_take_a_pod(asking: Json, names: list[str]) -> None:
    small = node("small", {"nvidia.com/gpu.product": "T4", "nvidia.com/gpu.memory": "15360"}, 1)
    found = placed(asking, facts(BIG, small, node("cpu", {"zone": "a"})))
    assert found is not None
    assert found.obstacle is None
    assert [each.name for each in found.nodes] == names


@pytest.mark.parametrize("annotations", [{GPU_PRODUCT: "*H100*"}, {GPU_MEMORY: ">=80G"}])
def test_a_missing_label_excludes_no_node(annotations: Json) -> None:
    found = placed(pod(annotations=annotations), facts(node("plain", gpus=8)))
    assert found is not None
    assert [each.name for each in found.nodes] == ["plain"]
