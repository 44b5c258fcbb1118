"""Nodes, and the NodePools of which Karpenter makes them."""

from __future__ import annotations

from collections.abc import Mapping

from policies.kube.objects.base import EMPTY, Part, Quantity
from policies.kube.objects.metadata import NO_METADATA, Object, ObjectMeta, Requirement


class Taint(Part):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Part):
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


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


class NodePoolSpec(Part):
    template: NodeClaimTemplate = NodeClaimTemplate()
    limits: Mapping[str, Quantity] = EMPTY


class NodePool(Object):
    spec: NodePoolSpec = NodePoolSpec()
