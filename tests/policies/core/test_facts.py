from policies.core.facts import Facts, NoCluster
from policies.core.listing import Listing
from policies.core.resources import Resource
from policies.kube.json import Json


class Nodes(NoCluster):
    def __init__(self, *nodes: Json) -> None:
        self.nodes = Listing(nodes)

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        return self.nodes if resource is Resource.NODES else None


def test_derived_values_are_computed_once_per_listing() -> None:
    calls = []

    def count(listing: Listing) -> int:
        calls.append(listing)
        return len(listing)

    listing = Listing([{"a": 1}, {"a": 2}])
    assert [listing.derive(count), listing.derive(count), len(calls)] == [2, 2, 1]
    assert Listing([{"a": 1}]).derive(count) == 1
    assert (listing[0], listing[1:]) == ({"a": 1}, ({"a": 2},))


def test_unknown_facts_are_none() -> None:
    facts = Facts()
    assert facts.nodes() is None
    assert facts.namespace_labels() is None
    assert facts.model_config("x") is None
    assert facts.oldest_kubelet() is None


def test_the_oldest_kubelet_counts() -> None:
    def node(version: str) -> Json:
        return {"metadata": {"name": version}, "status": {"nodeInfo": {"kubeletVersion": version}}}

    assert Facts(cluster=Nodes(node("v1.36.1"), node("v1.9.0-gke.1"), node("?"))).oldest_kubelet() == (1, 9)
    assert Facts(cluster=Nodes({"metadata": {"name": "x"}})).oldest_kubelet() is None
    serverless = node("v1.19.10-vk-azure-aci-1.4.4")
    labelled = node("v1.14.3") | {"metadata": {"name": "l", "labels": {"type": "virtual-kubelet"}}}
    tainted = node("v1.14.3") | {"spec": {"taints": [{"key": "virtual-kubelet.io/provider"}]}}
    for virtual in (serverless, labelled, tainted):
        assert Facts(cluster=Nodes(node("v1.36.1"), virtual)).oldest_kubelet() == (1, 36)
        assert Facts(cluster=Nodes(virtual)).oldest_kubelet() is None
