"""Nodes, the NodePools of which Karpenter makes them, and the nodes that a pod's own spec selects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from policies.kube.objects.metadata import EMPTY, NO_METADATA, Object, ObjectMeta, Part, Quantity, Requirement
from policies.kube.objects.pods import PodSpec


class Taint(Part):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Part):
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    provider_id: str = msgspec.field(default="", name="providerID")


class NodeInfo(Part):
    kubelet_version: str = ""


class NodeStatus(Part):
    allocatable: Mapping[str, Quantity] = EMPTY
    node_info: NodeInfo = NodeInfo()


class Node(Object):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NodeClaimSpec(Part):
    requirements: tuple[Requirement, ...] = ()
    taints: tuple[Taint, ...] = ()


class NodeClaimTemplate(Part):
    metadata: ObjectMeta = NO_METADATA
    spec: NodeClaimSpec = NodeClaimSpec()


class DisruptionBudget(Part):
    nodes: str = "10%"
    schedule: str = ""
    reasons: tuple[str, ...] = ()


class Disruption(Part):
    consolidation_policy: str = "WhenEmptyOrUnderutilized"
    consolidate_after: str = ""
    budgets: tuple[DisruptionBudget, ...] = ()


class NodePoolSpec(Part):
    template: NodeClaimTemplate = NodeClaimTemplate()
    limits: Mapping[str, Quantity] = EMPTY
    disruption: Disruption = Disruption()


class NodePool(Object):
    spec: NodePoolSpec = NodePoolSpec()

    @property
    def moves_pods(self) -> bool:
        """Whether Karpenter may remove a node that runs pods because they fit elsewhere
        (https://karpenter.sh/docs/concepts/disruption/#consolidation)."""
        disruption = self.spec.disruption
        never = any(
            each.nodes in ("0", "0%") and not each.schedule and not each.reasons
            for each in disruption.budgets
        )
        return (
            disruption.consolidation_policy in ("WhenUnderutilized", "WhenEmptyOrUnderutilized")
            and disruption.consolidate_after != "Never"
            and not never
        )


HOSTNAME: Final = "kubernetes.io/hostname"


def only_node(pod: PodSpec) -> str:
    """The only node that a pod may run on, by its name or its host name; empty if there are several."""
    if found := pod.node_name or pod.node_selector.get(HOSTNAME, ""):
        return found
    required = pod.affinity.node_affinity.required
    if required is None or len(required.node_selector_terms) != 1:
        return ""
    [term] = required.node_selector_terms
    names = (
        each.values[0]
        for key, requirements in ((HOSTNAME, term.match_expressions), ("metadata.name", term.match_fields))
        for each in requirements
        if each.operator == "In" and each.key == key and len(each.values) == 1
    )
    return next(names, "")


def pinned_to_one_node(pod: PodSpec) -> bool:
    return bool(only_node(pod))
