"""How much Karpenter's NodePools have room for, and why they create no node for a pod."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.accelerators.requests import served_by_claims
from policies.core.facts import Facts
from policies.core.pod_view import PodView
from policies.core.target import PodTemplate
from policies.kube.names import listed
from policies.kube.node_pools import MAX_POOLS, POOL, why_no_node
from policies.kube.objects.devices import DeviceClass
from policies.kube.objects.nodes import Node, NodePool
from policies.kube.objects.placement import Toleration
from policies.kube.objects.pods import PodSpec
from policies.kube.quantities import parse_quantity
from policies.kube.scheduling import admits, is_within_limits, untolerated
from policies.quotas.limit_ranges import Amounts, amounts, formatted, written_requests
from policies.relations.domains import MAX_NODES

_CATEGORIES: Final = ("karpenter.k8s.aws/instance-category", "eks.amazonaws.com/instance-category")
_WITHOUT_ACCELERATORS: Final = frozenset("acdhimrtxz")
"""Categories of EC2 without accelerators: https://docs.aws.amazon.com/ec2/latest/instancetypes/instance-type-names.html"""

_SHARING: Final = "nvidia.com/gpu.sharing-strategy"
"""The label of a node whose accelerators several pods share."""


class Bound(Struct, frozen=True):
    """The number of pods that fit on all nodes that Karpenter may create."""

    room: int
    limits: str
    """`NodePool gpu: 8 nvidia.com/gpu`."""


def bound_of(template: PodTemplate, facts: Facts) -> Bound | None:
    """How many pods fit on all nodes that Karpenter may create; None without a bound.

    Nothing is bound unless every node that can take the pod is Karpenter's, and each NodePool that may create
    one has a limit of a resource that the pod requests. The limits are compared with the capacity of the
    nodes, which is at least what their pods request. Semantics: `filterByRemainingResources` in
    pkg/controllers/provisioning/scheduling of Karpenter 1.8.
    """
    settings, nodes = facts.settings(GpuAffinity), facts.cluster_objects(Node) or ()
    pools = facts.cluster_objects(NodePool) or ()
    if not 0 < len(pools) <= MAX_POOLS or len(nodes) > MAX_NODES or settings.knows_all_nodes:
        return None
    if facts.is_unread(Node):
        return None
    by_pool = defaultdict[str, list[Node]](list)
    for node in nodes:
        by_pool[node.metadata.labels.get(POOL, "")].append(node)
    names = {pool.name for pool in pools}
    others = (node for name, members in by_pool.items() if name not in names for node in members)
    try:
        requests, spec = written_requests(template), _placed_by_author(template, settings)
        if spec is None or any(_fits(node, spec, requests) for node in others):
            return None  # something else may add more of these nodes
        accelerated = bool(settings.catalogue.requests(spec))
        bounds = [
            _limited(pool, requests, by_pool.get(pool.name, []))
            for pool in pools
            if why_no_node(spec, pool) is None and not (accelerated and _lacks_accelerators(pool))
        ]
    except ValueError:
        return None  # the API server refuses such a quantity
    if not bounds or None in bounds:
        return None
    known = [each for each in bounds if each is not None]
    return Bound(sum(each.room for each in known), listed((each.limits for each in known), 3))


def kept_out_by_taints(template: PodTemplate, facts: Facts) -> list[str]:
    """Why no NodePool creates a node for a pod with accelerators, if no known node has these and one of the
    pools would create one without its taints; else empty.

    NodePools of instances without accelerators are left out.
    """
    settings, nodes = facts.settings(GpuAffinity), facts.cluster_objects(Node) or ()
    pools = facts.cluster_objects(NodePool) or ()
    requests = settings.catalogue.requests(template.typed.spec)
    if not requests or not nodes or not 0 < len(pools) <= MAX_POOLS or len(nodes) > MAX_NODES:
        return []
    if settings.pools or served_by_claims(requests, facts) or facts.is_unread(DeviceClass):
        return []
    if any(name in node.status.allocatable for node in nodes for name in requests):
        return []
    spec = _placed_by_author(template, settings)
    possible = [pool for pool in pools if not _lacks_accelerators(pool)]
    if spec is None:
        return []
    tolerant = replace(spec, tolerations=(Toleration(operator="Exists"),))
    found = [why_no_node(spec, pool) for pool in possible]
    if None in found or all(why_no_node(tolerant, pool) is not None for pool in possible):
        return []
    return [each for each in found if each is not None]


def _placed_by_author(template: PodTemplate, settings: GpuAffinity) -> PodSpec | None:
    """The pod spec with its author's affinity, and with the tolerations of its resources: labels of vendors,
    which gpu-affinity adds, are on running nodes only."""
    spec = PodView(template.unprojected).typed.spec
    if spec.node_name or not is_within_limits(spec):
        return None
    catalogue = settings.catalogue
    requests = catalogue.requests(spec)
    vendors = [catalogue.vendors[name] for name in map(catalogue.vendor_of, requests) if name]
    keys = dict.fromkeys((*requests, *(taint.key for vendor in vendors for taint in vendor.taints)))
    added = (Toleration(key=key, operator="Exists") for key in keys)
    return replace(spec, tolerations=(*template.typed.spec.tolerations, *added))


def _fits(node: Node, spec: PodSpec, requests: Amounts) -> bool:
    """Whether a node can take the pod when it is empty. Raises ValueError."""
    offered = amounts({name: value for name, value in node.status.allocatable.items() if name in requests})
    return (
        admits(spec, node.name, node.metadata.labels)
        and untolerated(spec, node.spec.taints) is None
        and all(
            offered.get(name, 0 if "/" in name else amount) >= amount for name, amount in requests.items()
        )
    )


def _lacks_accelerators(pool: NodePool) -> bool:
    """Whether no node of a NodePool has accelerators."""
    return any(
        each.key in _CATEGORIES and each.operator == "In" and _WITHOUT_ACCELERATORS.issuperset(each.values)
        for each in pool.spec.template.spec.requirements
    )


def _limited(pool: NodePool, requests: Amounts, own: list[Node]) -> Bound | None:
    """The bound of one NodePool; None without a limit of a requested resource. If somebody lowered the limit
    below the capacity of its running nodes, these nodes are the bound. Raises ValueError."""
    if any(node.metadata.labels.get(_SHARING, "none") != "none" for node in own):
        return None  # a running node offers more than Karpenter counts for it
    limits = {name: amount for name, amount in amounts(pool.spec.limits).items() if name in requests}
    for name in limits:
        present = (parse_quantity(node.status.allocatable.get(name, 0)) for node in own)
        limits[name] = max(limits[name], sum(present, Decimal(0)))
    rooms = {name: int(amount / requests[name]) for name, amount in limits.items()}
    tightest = min(rooms, key=lambda name: rooms[name], default=None)
    if tightest is None:
        return None
    return Bound(rooms[tightest], f"NodePool {pool.name}: {formatted(tightest, limits[tightest])} {tightest}")
