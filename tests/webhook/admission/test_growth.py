"""The work for a review grows no faster than what there is to look at, counted in calls: on every machine."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from benchmarks._grown import DIMENSIONS, MAX, MIN, Grown, node, pod, world
from policies.containers.commands import clear_cache
from policies.core.facts import Cluster
from policies.core.resources import Resource
from policies.kube.json import Json, dig, replaced
from tests.calls import calls
from tests.incidents.incidents import ROOT
from webhook.admission import bounds, engine
from webhook.admission.configuration import Config
from webhook.admission.decision import Decision
from webhook.admission.envelope import Request
from webhook.admission.messages import respond
from webhook.admission.review import Review
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import read

STEEPEST = 1.1
"""The exponent: 1 is linear."""
STEEPEST_OF_MANY = 1.25
"""The same where each of the copies gets findings, which are sorted and compared."""
HEAVY = 100_000
"""Calls for MIN things: then MAX of them take seconds, and far more than the budget of a review."""


@pytest.fixture(autouse=True)
def _without_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects beyond the budget are not read: here they must be."""
    monkeypatch.setattr(bounds, "STEPS", 10**9)


def _mutated(request: Request, config: Config, cluster: Cluster) -> Decision:
    return engine.mutate(Review(request, config, cluster))


def decided(grown: Grown) -> Callable[[], object]:
    config = load(grown.policy)

    def decide() -> None:
        decision = engine.decide(Review(grown.request, config, grown.cluster))
        assert not decision.crashes
        assert not any("isn't reviewed" in note for note in decision.notes)
        respond(decision)

    return decide


def exponent(least: float, most: float, times: float = MAX / MIN) -> float:
    return math.log(most / least) / math.log(times)


@pytest.mark.parametrize("what", DIMENSIONS)
def test_growth_is_linear(what: str) -> None:
    decided(DIMENSIONS[what](2))()  # data that is read once, such as the table of presets
    least = calls(decided(DIMENSIONS[what](MIN)))
    count = MAX if least < HEAVY else MAX // 3
    most = calls(decided(DIMENSIONS[what](count)))
    assert exponent(least, most, count / MIN) <= STEEPEST, (least, most)


IN_INCIDENTS = {
    "servers/ollama-pull-without-egress": "StatefulSet spec.template.spec.containers",
    "servers/qdrant-readyz-blocks-its-own-rollout": "StatefulSet spec.template.spec.containers",
    "servers/ray-serve-gives-a-busy-engine-up": "RayService spec.rayClusterConfig.workerGroupSpecs",
    "servers/sglang-shared-memory": "Deployment spec.template.spec.containers",
    "training/argo-pod-deleted-by-node-reboot": "CronWorkflow spec.workflowSpec.templates",
    "training/distributed-job-loses-quorum": (
        "PyTorchJob spec.pytorchReplicaSpecs.Worker.template.spec.containers"
    ),
    "training/migration-checker-before-its-hook": "Deployment spec.template.spec.initContainers",
    "training/trainjob-initializer-cannot-write-its-cache": "JobSet spec.replicatedJobs",
}
"""The kind of an object of an incident, and a list of it that is filled with copies of its first item."""


@pytest.mark.parametrize("name", IN_INCIDENTS)
def test_growth_is_linear_among_the_objects_of_incidents(name: str) -> None:
    kind, _, path = IN_INCIDENTS[name].partition(" ")
    documents = list(read([str(ROOT / name / "reported.yaml")]))
    document = next(each for each in documents if each.obj["kind"] == kind)
    rest = [each.obj for each in documents if each is not document]
    steps = path.split(".")

    def grown(count: int) -> Callable[[], object]:
        first = dig(document.obj, *steps)[0]
        obj = replaced(document.obj, steps, [{**first, "name": f"c{number}"} for number in range(count)])
        request = replace(document.request(), object=obj)
        return decided(Grown(request, {}, ManifestCluster([obj, *rest], whole=True)))

    grown(2)()
    assert exponent(calls(grown(40)), calls(grown(160)), 4) <= STEEPEST_OF_MANY


def test_a_review_leaves_nothing_to_the_garbage_collector() -> None:
    decide = decided(Grown.of(pod(3, 10)))
    decide()
    clear_cache()  # commands are then read again
    gc.collect()
    gc.disable()
    try:
        decide()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_quadratic_growth_fails() -> None:
    def compares(count: int) -> Callable[[], object]:
        return lambda: [max(a, b) for a in range(count) for b in range(count)]

    assert exponent(calls(compares(MIN)), calls(compares(MAX))) > 1.9


def test_a_review_after_one_change_costs_the_same_in_a_large_cluster() -> None:
    counts = []
    for nodes in (MIN, 10 * MAX):
        cluster = world(nodes, nodes)
        stores = {store.kind: store for _, _, store in cluster.sources}
        grown = Grown(DIMENSIONS["containers of a Deployment"](1).request, {}, cluster)
        decide = decided(grown)
        decide()
        changed: Json = node(7, unschedulable=True)
        stores["Node"].put(changed)
        cluster.listing(Resource.NODES)  # which puts its objects in a row
        counts.append(calls(decide))
    small, large = counts
    assert large <= 1.1 * small


def test_a_mutation_after_a_change_costs_the_same_among_many_nodes_with_accelerators() -> None:
    def accelerated(number: int, **spec: object) -> Json:
        labels = {"nvidia.com/gpu.present": "true", "kubernetes.io/hostname": f"n{number}"}
        made = node(50, **spec)
        return {**made, "metadata": {"name": f"n{number}", "labels": labels}}

    counts = []
    for nodes in (10, MAX):
        cluster = world(0, 0)
        store = next(store for _, _, store in cluster.sources if store.kind == "Node")
        for number in range(nodes):
            store.put(accelerated(number))
        request, config = DIMENSIONS["containers of a pod"](1).request, load({})
        mutated = partial(_mutated, request, config, cluster)
        assert "nvidia.com/gpu.present" in str(mutated().patch)
        store.put(accelerated(7, unschedulable=True))
        cluster.listing(Resource.NODES)
        counts.append(calls(mutated))
    few, many = counts
    assert many <= 1.1 * few


def test_a_named_model_costs_the_same_among_many_nodes_with_accelerators() -> None:
    serving = pod(1)
    serving["spec"]["containers"][0] |= {
        "image": "vllm/vllm-openai:v0.10.0",
        "args": ["--model", "meta-llama/Llama-3.1-8B-Instruct"],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    request = replace(DIMENSIONS["containers of a pod"](1).request, object=serving)
    counts = []
    for nodes in (10, MAX):
        cluster = world(0, 0)
        store = next(store for _, _, store in cluster.sources if store.kind == "Node")
        for number in range(nodes):
            memory = ("81559", "8192")[number % 2]
            labels = {"nvidia.com/gpu.memory": memory, "kubernetes.io/hostname": f"n{number}"}
            store.put({**node(50), "metadata": {"name": f"n{number}", "labels": labels}})
        decide = decided(Grown(request, {}, cluster))
        decide()
        counts.append(calls(decide))
    few, many = counts
    assert many <= 1.1 * few
