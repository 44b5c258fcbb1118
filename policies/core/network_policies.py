"""Policies of network plug-ins, next to the NetworkPolicies of Kubernetes."""

from __future__ import annotations

from typing import Final

from policies.core import data
from policies.core.facts import WholeObjects
from policies.core.settings import Field, Model
from policies.kube.group_kinds import GroupKind
from policies.kube.json import text

TUNNELS: Final = (15008, 4143)
"""The ports of a pod to which its mesh sends the requests for all others: Istio's in ambient mode
(https://istio.io/latest/docs/ambient/usage/networkpolicy/), and Linkerd's
(https://linkerd.io/2/common-errors/network-policy/)."""
_ADDED: Final = (
    "pod-template-hash",
    "controller-revision-hash",
    "statefulset.kubernetes.io/",
    "apps.kubernetes.io/",
    "batch.kubernetes.io/",
)
"""Labels that controllers add to the pods of a template, or their domains:
https://kubernetes.io/docs/reference/labels-annotations-taints/"""


class PolicyKind(Model):
    """An entry of `network_policies.yaml`."""

    kinds: tuple[str, ...] = Field(description="as `Kind.group`")
    everywhere: bool = Field(False, description="whether its objects are about all namespaces")
    source: str


@data.table
def _kinds() -> dict[GroupKind, bool]:
    entries = data.load_list(PolicyKind, __package__, "network_policies.yaml")
    return {GroupKind.parse(kind): each.everywhere for each in entries for kind in each.kinds}


def others_may_admit(cluster: WholeObjects, namespace: str) -> bool:
    """Whether policies of a network plug-in may admit what the NetworkPolicies of a namespace do not."""
    places = cluster.cache.once(_places, cluster)
    return not places.isdisjoint((None, namespace or "default"))


def is_added(label: str) -> bool:
    """Whether controllers add a label, so that a template without it may have pods with it."""
    return label.startswith(_ADDED)


def _places(cluster: WholeObjects) -> frozenset[str | None]:
    """The namespaces with such policies; None for all."""
    return frozenset(
        None if everywhere else text(obj, "metadata", "namespace") or "default"
        for kind, everywhere in _kinds().items()
        for obj in cluster.every(kind, None)
    )
