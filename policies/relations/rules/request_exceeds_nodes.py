"""request-exceeds-nodes: pods that request more CPU or memory than any node has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from decimal import Decimal

from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.accelerators.placement import placement
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.listing import Listing
from policies.kube.group_kinds import DAEMON_SET, POD
from policies.kube.objects.nodes import Node, NodePool
from policies.kube.quantities import parse_quantity
from policies.quotas.limit_ranges import formatted, written_requests
from policies.relations.domains import MAX_NODES

_COMPARED = ("cpu", "memory")


def check(target: Target, facts: Facts) -> Findings:
    if target.kind in (POD, DAEMON_SET) or not target.replicas:
        return
    settings = facts.settings(GpuAffinity)
    nodes = facts.nodes() if not settings.pools else None
    if not nodes or len(nodes) > MAX_NODES:
        return
    if facts.cluster_objects(NodePool) or facts.is_unread(NodePool):
        return  # Karpenter makes a node for the pod
    amounts, least = nodes.derive(_amounts), nodes.derive(_least)
    for template in target.templates:
        requests = _requests(template)
        if all(amount <= least.get(resource, 0) for resource, amount in requests.items()):
            continue  # each node has enough, whichever the pod may use
        found = placement(template.view, facts)
        if template.typed.spec.node_name or (found is not None and found.obstacle is not None):
            continue  # gpu-unschedulable reports it
        takes = list(amounts) if found is None else [node.name for node in found.nodes]
        of = "largest node" if found is None else "largest node with its accelerators"
        largest = _of_all(max, [amounts.get(name, {}) for name in takes])
        for resource, amount in requests.items():
            if resource in largest and amount > largest[resource]:
                yield Finding(
                    template.spec_path,
                    f"A pod requests {formatted(resource, amount)} {resource}, but the {of} has "
                    f"{formatted(resource, largest[resource])}. The pod stays Pending until a larger node "
                    "is added.",
                    "Request less in each pod, for example with more replicas, or add larger nodes.",
                    # An autoscaler more often has a pool of other accelerators without nodes.
                    Certainty.CERTAIN if found is None or settings.knows_all_nodes else Certainty.LIKELY,
                )
                break


def _amounts(nodes: Listing) -> dict[str, dict[str, Decimal]]:
    """What each node offers, by its name."""
    return {node.name: _offered(node) for node in nodes.objects(Node)}


def _least(nodes: Listing) -> dict[str, Decimal]:
    """The smallest amount of each resource that a node offers."""
    return _of_all(min, nodes.derive(_amounts).values())


def _offered(node: Node) -> dict[str, Decimal]:
    offered = {}
    for resource in _COMPARED:
        try:
            offered[resource] = parse_quantity(node.status.allocatable[resource])
        except (KeyError, ValueError):
            continue
    return offered


def _of_all(
    choose: Callable[[Iterable[Decimal]], Decimal], offers: Collection[dict[str, Decimal]]
) -> dict[str, Decimal]:
    """The chosen amount of each resource that nodes offer; without one if a node does not tell it."""
    return {
        resource: choose(each[resource] for each in offers)
        for resource in _COMPARED
        if offers and all(resource in each for each in offers)
    }


def _requests(template: PodTemplate) -> dict[str, Decimal]:
    try:
        sums = written_requests(template)
    except ValueError:
        return {}
    return {resource: sums[resource] for resource in _COMPARED if resource in sums}


RULE = rule(__name__, check, unowned=True, at_once=True)
