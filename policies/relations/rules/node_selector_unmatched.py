"""node-selector-unmatched: pods whose node selector matches no node that they tolerate."""

from __future__ import annotations

from typing import Final

from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.accelerators.placement import placement
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.listing import Listing, is_manifest
from policies.core.services import workloads_of
from policies.kube.group_kinds import DAEMON_SET, POD
from policies.kube.json import mapping
from policies.kube.node_pools import MAX_POOLS, why_no_node
from policies.kube.objects.nodes import HOSTNAME, Node, NodePool
from policies.kube.objects.pods import PodSpec
from policies.kube.scheduling import (
    admits,
    is_within_limits,
    lasting,
    required_keys,
    tolerates,
    untolerated,
)
from policies.relations.domains import MAX_NODES, matches_no_node, taint_of_matching
from policies.relations.node_pools import kept_out_by_taints

_SHOWN: Final = 3


def check(target: Target, facts: Facts) -> Findings:
    if target.kind == POD or not target.replicas:
        return
    settings = facts.settings(GpuAffinity)
    nodes = facts.nodes() if not settings.pools else None
    if not nodes or len(nodes) > MAX_NODES:
        return
    on_each_node = target.kind == DAEMON_SET
    outcome = "No node runs the DaemonSet's pod" if on_each_node else "The pods stay Pending"
    for template in target.templates:
        if placement(template.view, facts) is None and is_within_limits(template.typed.spec):
            tainted = list(_tainted(template, nodes, outcome))
            yield from tainted
            if on_each_node and not tainted:
                yield from _mistaken(template, nodes, settings)
            if not on_each_node:
                yield from _following(template, facts)
    if on_each_node:
        return  # it may be for nodes that come later
    pools = facts.cluster_objects(NodePool) or ()
    if len(pools) > MAX_POOLS or (not settings.fixed_size and not pools and is_manifest(nodes[0])):
        return
    for template in target.templates:
        spec = template.typed.spec
        if spec.node_name or not is_within_limits(spec):
            continue
        if placement(template.view, facts) is not None:
            continue  # gpu-unschedulable judges pods with accelerators
        if not settings.fixed_size and not pools and _may_scale_from_zero(spec, settings):
            continue
        if matches_no_node(spec, nodes):
            reasons = [why_no_node(spec, pool) for pool in pools]
            if None not in reasons:
                yield _finding(
                    template, len(nodes), [each for each in reasons if each], fixed=settings.fixed_size
                )
        elif pools and (taints := kept_out_by_taints(template, facts)):
            yield _without_pool(template, taints)


def _tainted(template: PodTemplate, nodes: Listing, outcome: str) -> Findings:
    """A finding if every node that matches has a taint that the pod does not tolerate."""
    found = taint_of_matching(template.typed.spec, nodes)
    if found is not None:
        name, taint = found
        yield Finding(
            f"{template.spec_path}.tolerations",
            f"{outcome}. Every node that matches the node selector and required node affinity has a taint "
            f"that the pods don't tolerate, such as {taint.key} of {name}.",
            "Tolerate the taint if these nodes are meant for the pods.",
            Certainty.UNDECIDED,
        )


def _mistaken(template: PodTemplate, nodes: Listing, settings: GpuAffinity) -> Findings:
    """A finding about a toleration of nodes with accelerators whose value none of them has."""
    spec = template.typed.spec
    for index, toleration in enumerate(spec.tolerations):
        if toleration.operator not in ("", "Equal") or not settings.catalogue.vendor_of(toleration.key):
            continue
        taints = [
            (node.name, taint)
            for node in nodes.objects(Node)
            for taint in lasting(node.spec.taints)
            if taint.key == toleration.key and admits(spec, node.name, node.metadata.labels)
        ]
        if taints and not any(tolerates(spec, taint) for _, taint in taints):
            name, taint = taints[0]
            if toleration.effect in ("", taint.effect):
                yield Finding(
                    f"{template.spec_path}.tolerations[{index}].value",
                    f"No pod of the DaemonSet runs on {name}. The toleration is of {taint.key} with the "
                    f"value {toleration.value!r}, and the value of the taint is {taint.value!r}.",
                    "Tolerate the taint with operator: Exists.",
                    Certainty.LIKELY,
                )


def _without_pool(template: PodTemplate, reasons: list[str]) -> Finding:
    return Finding(
        f"{template.spec_path}.tolerations",
        "The pods stay Pending. No node has the accelerators that they request, and no Karpenter NodePool "
        f"creates a node for them ({_first(reasons)}).",
        "Tolerate the taint if these nodes are meant for the pods.",
        Certainty.UNDECIDED,
    )


def _first(reasons: list[str]) -> str:
    more = f", and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
    return f"{'; '.join(reasons[:_SHOWN])}{more}"


def _following(template: PodTemplate, facts: Facts) -> Findings:
    """A finding about pods that must run on the node of a pod with accelerators, and that don't tolerate the
    taints of any such node."""
    spec = template.typed.spec
    for term in spec.affinity.pod_affinity.required:
        selector = term.label_selector
        if term.topology_key != HOSTNAME or selector is None or term.namespaces or term.namespace_selector:
            continue
        followed = list(workloads_of(selector, facts))
        if len(followed) != 1 or selector.matches(template.typed.metadata.labels):
            continue
        [(obj, workload)] = followed
        placed = placement(facts.view(mapping(obj, "spec", "template")), facts)
        taints = [] if placed is None else [untolerated(spec, node.lasting_taints) for node in placed.nodes]
        if taints and (first := taints[0]) is not None and None not in taints:
            yield Finding(
                f"{template.spec_path}.tolerations",
                "The pods stay Pending. Their podAffinity asks for the node of "
                f"{workload.name}, and every node with its accelerators has a "
                f"taint that they don't tolerate, such as {first.key}.",
                "Tolerate the taint too.",
                Certainty.UNDECIDED,
            )


def _may_scale_from_zero(pod: PodSpec, settings: GpuAffinity) -> bool:
    """Whether the pod needs a pool that is often empty: by accelerators, or by the pool's own label."""
    requests = settings.catalogue.requests(pod)
    return bool(requests) or not required_keys(pod).isdisjoint(settings.autoscaler_labels)


def _finding(template: PodTemplate, nodes: int, reasons: list[str], *, fixed: bool) -> Finding:
    field = "nodeSelector" if template.typed.spec.node_selector else "affinity.nodeAffinity"
    count = "the only node doesn't match" if nodes == 1 else f"none of the {nodes} nodes matches"
    if reasons:
        future = f"no Karpenter NodePool creates a node that does ({_first(reasons)})"
    elif fixed:
        future = "gpu-affinity.yaml declares that no nodes are added (fixedSize)"
    else:
        future = "they wait until somebody labels one or an autoscaler adds one"
    return Finding(
        f"{template.spec_path}.{field}",
        f"The pods stay Pending, because {count} their node selector and required node affinity, and "
        f"{future}.",
        "Correct the node selector or affinity, or label a node" + (" or a NodePool." if reasons else "."),
        Certainty.CERTAIN if fixed else Certainty.LIKELY,
    )


RULE = rule(__name__, check, unowned=True, at_once=True)
