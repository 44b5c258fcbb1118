"""request-exceeds-nodes: pods that request more CPU or memory than any node has."""

from __future__ import annotations

from decimal import Decimal

from policies.accelerators.placement import placement
from policies.accelerators.requests import GpuAffinity
from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
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
    largest = nodes.derive(_largest)
    for template in target.templates:
        if template.typed.spec.node_name or placement(template.view, facts) is not None:
            continue  # gpu-unschedulable judges pods with accelerators
        for resource, amount in _requests(template).items():
            if resource in largest and amount > largest[resource]:
                yield Finding(
                    template.spec_path,
                    f"A pod requests {formatted(resource, amount)} {resource}, but the largest node has "
                    f"{formatted(resource, largest[resource])}. The pod stays Pending until a larger node "
                    "is added.",
                    "Request less in each pod, for example with more replicas, or add larger nodes.",
                )
                break


def _largest(nodes: Listing) -> dict[str, Decimal]:
    """The largest amount of each resource that a node offers; without one if a node does not tell it."""
    found: dict[str, Decimal] = {}
    unknown: set[str] = set()
    for node in nodes.objects(Node):
        for resource in _COMPARED:
            try:
                amount = parse_quantity(node.status.allocatable[resource])
            except (KeyError, ValueError):
                unknown.add(resource)
                continue
            found[resource] = max(amount, found.get(resource, amount))
    return {resource: amount for resource, amount in found.items() if resource not in unknown}


def _requests(template: PodTemplate) -> dict[str, Decimal]:
    try:
        sums = written_requests(template)
    except ValueError:
        return {}
    return {resource: sums[resource] for resource in _COMPARED if resource in sums}


RULE = rule(__name__, check, unowned=True, at_once=True)
