"""Nodes that a cloud takes back within seconds: spot and preemptible ones."""

from __future__ import annotations

from policies.core import data
from policies.core.settings import Field, Model
from policies.kube.objects.pods import PodSpec
from policies.kube.scheduling import required_keys


class SpotNodes(Model):
    """An entry of `spot_nodes.yaml`."""

    label: str
    values: tuple[str, ...]
    seconds: int = Field(description="the time that pods have after the notice")
    raised: str = Field("", description="how a cluster can have more, as half a sentence")
    source: str


_spot_nodes = data.entries(SpotNodes, __package__, "spot_nodes.yaml")


def spot_nodes_of(pod: PodSpec) -> SpotNodes | None:
    """The nodes on which a pod must run, if a cloud may take all of them back."""
    keys = required_keys(pod)
    return next((each for each in _spot_nodes() if each.label in keys and _requires(pod, each)), None)


def _requires(pod: PodSpec, nodes: SpotNodes) -> bool:
    if pod.node_selector.get(nodes.label) in nodes.values:
        return True
    required = pod.affinity.node_affinity.required
    return required is not None and all(
        any(
            each.key == nodes.label
            and each.operator == "In"
            and bool(each.values)
            and set(each.values) <= set(nodes.values)
            for each in term.match_expressions
        )
        for term in required.node_selector_terms
    )
