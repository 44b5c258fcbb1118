"""After every change of a cluster, carried-over values equal newly computed ones."""

from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.accelerators.requests import inventory_of
from policies.core import autoscalers, dns, services
from policies.core import facts as known_facts
from policies.core.facts import Facts
from policies.core.listing import BY_NAME, Groups, Index, InheritedIndices, Listing
from policies.core.resources import Resource
from policies.core.settings import default_settings
from policies.disruption import budgets
from policies.kube.json import Json
from webhook.kube.caches import ClusterCache, Store

INDICES: dict[Resource, tuple[Index[Any], ...]] = {
    Resource.SERVICES: (BY_NAME, dns.BY_VARIABLE, dns.BY_ADDRESS, services.BY_FIRST_LABEL),
    Resource.CLAIMS: (BY_NAME,),
    Resource.WORKLOADS: (services.BY_LABEL,),
    Resource.BUDGETS: (budgets.BY_LABEL,),
    Resource.AUTOSCALERS: (autoscalers._BY_TARGET,),
    Resource.NODES: (known_facts._BY_KUBELET, BY_NAME),
}
NAMES = st.sampled_from(["a", "b", "a-b"])
LABELS = st.dictionaries(st.sampled_from(["app", "tier"]), st.sampled_from(["x", "y"]), max_size=2)
SELECTED = st.builds(lambda labels: {"matchLabels": labels}, LABELS)
TEMPLATES = st.builds(lambda labels: {"metadata": {"labels": labels}}, LABELS)
SPECS: dict[str, st.SearchStrategy[Json]] = {
    "Service": st.fixed_dictionaries(
        {
            "clusterIP": st.sampled_from(["None", "10.0.0.1", "10.0.0.2", ""]),
            "selector": LABELS,
            "ports": st.sampled_from([[], [{"targetPort": "http"}], [{"targetPort": 80}]]),
        }
    ),
    "PersistentVolumeClaim": st.fixed_dictionaries({"accessModes": st.just(["ReadWriteOnce"])}),
    "Deployment": st.fixed_dictionaries({"template": TEMPLATES}),
    "StatefulSet": st.fixed_dictionaries({"replicas": st.integers(0, 2)}),
    "PodDisruptionBudget": st.fixed_dictionaries({"selector": SELECTED}),
    "HorizontalPodAutoscaler": st.fixed_dictionaries(
        {"scaleTargetRef": st.fixed_dictionaries({"kind": st.just("Deployment"), "name": NAMES})}
    ),
    "Node": st.fixed_dictionaries({"unschedulable": st.booleans()}),
}
NODES = st.fixed_dictionaries(
    {
        "labels": st.sampled_from([{}, {"nvidia.com/gpu.product": "A100"}, {"zone": "a"}]),
        "gpus": st.sampled_from([None, "8"]),
        "version": st.sampled_from(["v1.33.1", "v1.34.0", ""]),
    }
)


@st.composite
def edits(draw: st.DrawFn) -> tuple[str, Json, bool, bool]:
    """A kind, an object of it, whether it goes, and whether somebody asks afterwards."""
    kind = draw(st.sampled_from(sorted(SPECS)))
    obj: Json = {"kind": kind, "metadata": {"name": draw(NAMES)}, "spec": draw(SPECS[kind])}
    if kind == "Node":
        node = draw(NODES)
        obj["metadata"]["labels"] = node["labels"]
        obj["status"] = {"nodeInfo": {"kubeletVersion": node["version"]}, "allocatable": {}}
        if node["gpus"]:
            obj["status"]["allocatable"]["nvidia.com/gpu"] = node["gpus"]
    else:
        obj["metadata"]["namespace"] = draw(st.sampled_from(["ml", "other"]))
    return kind, obj, draw(st.integers(0, 3)) == 0, draw(st.booleans())


def cluster() -> tuple[ClusterCache, dict[str, Store]]:
    cache = ClusterCache()
    stores = {store.kind: store for _, _, store in cache.sources if isinstance(store, Store)}
    for store in stores.values():
        store.begin()
        store.commit()
    return cache, stores


def shown(groups: Groups[Any]) -> dict[Hashable, set[int]]:
    return {key: {id(obj) for obj in groups[key]} for key in groups}


def compare(cache: ClusterCache) -> None:
    for resource, indices in INDICES.items():
        listing = cache.listing(resource, None if resource is Resource.NODES else "ml")
        assert listing is not None
        for index in indices:
            assert shown(listing.by(index)) == shown(index.build(listing)), resource
    found = inventory_of(default_settings(GpuAffinity), Facts("ml", cache))
    anew = GpuAffinity().catalogue.inventory(Listing(cache.listing(Resource.NODES) or ()))
    assert (found.fleets, found.names) == (anew.fleets, anew.names)
    for name, fleet in found.fleets.items():
        assert (fleet.nodes, fleet.idle) == (anew.fleets[name].nodes, anew.fleets[name].idle)
    assert found.exposed == anew.exposed


@given(st.lists(edits(), max_size=30))
def test_inherited_indices_equal_new_ones(made: list[tuple[str, Json, bool, bool]]) -> None:
    cache, stores = cluster()
    for kind, obj, goes, asked in made:
        (stores[kind].remove if goes else stores[kind].put)(obj)
        if asked:
            compare(cache)
    compare(cache)


@pytest.fixture
def counted() -> tuple[Index[str], list[Json]]:
    read: list[Json] = []

    def keys(obj: Json) -> list[str]:
        read.append(obj)
        return [obj["metadata"]["name"]]

    return Index(keys), read


def node(name: str, **spec: Any) -> Json:
    return {"kind": "Node", "metadata": {"name": name}, "spec": spec}


def test_only_the_changed_node_of_a_thousand_is_read(counted: tuple[Index[str], list[Json]]) -> None:
    index, read = counted
    cache, stores = cluster()

    def nodes() -> Listing:
        listing = cache.listing(Resource.NODES)
        assert listing is not None
        return listing

    for number in range(1000):
        stores["Node"].put(node(f"node-{number}"))
    nodes().by(index)
    assert len(read) == 1000
    stores["Node"].put(node("node-7", unschedulable=True))
    changed = nodes().by(index).one("node-7")
    assert changed is not None
    assert changed["spec"] == {"unschedulable": True}
    assert len(read) == 1002, "what it was, and what it is"


def test_an_unused_index_is_not_kept_for_ever(
    counted: tuple[Index[str], list[Json]],
) -> None:
    index, read = counted
    cache, stores = cluster()
    stores["Node"].put(node("a"))
    for number in range(200):
        listing = cache.listing(Resource.NODES)
        assert listing is not None
        if not number:
            listing.by(index)
        stores["Node"].put(node("b", number=number, unschedulable=bool(number % 2)))
    read.clear()
    listing = cache.listing(Resource.NODES)
    assert listing is not None
    assert shown(listing.by(index)) == shown(index.build(listing))
    assert len(read) == 4, "made anew, and once more to compare"


def test_a_listing_that_was_followed_answers_as_before(counted: tuple[Index[str], list[Json]]) -> None:
    index, _ = counted
    before = Listing([node("a"), node("b")])
    before.by(index)
    carried = InheritedIndices(before)
    gone, come = before[0], node("c")
    assert carried.add(gone, come)
    after = Listing([come, before[1]], carried)
    assert set(after.by(index)) == {"b", "c"}
    assert set(before.by(index)) == {"a", "b"}
