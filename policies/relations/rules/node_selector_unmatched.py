"""node-selector-unmatched: pods whose node selector matches no node of a cluster that does not grow."""

from __future__ import annotations

from collections.abc import Iterator

from policies.accelerators.node_affinity import is_surveyable
from policies.accelerators.placement import placement
from policies.accelerators.requests import GpuAffinity
from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.target import Target
from policies.kube.group_kinds import DAEMON_SET, POD
from policies.kube.json import mapping, text
from policies.kube.metadata import controller
from policies.relations.domains import MOST_NODES, selects_none
from policies.rollouts.rollouts import replicas_of


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    settings = facts.settings(GpuAffinity)
    nodes = facts.nodes() if settings.fixed_size and not settings.pools else None
    if not nodes or len(nodes) > MOST_NODES or target.kind in (POD, DAEMON_SET):
        return
    if controller(target.obj) is not None or not replicas_of(target.obj):
        return
    for template in target.templates:
        if text(template.spec, "nodeName") or not is_surveyable(template.pod):
            continue
        if placement(template.pod, settings, facts) is not None:
            continue  # gpu-unschedulable's
        if selects_none(template.pod, nodes):
            field = "nodeSelector" if mapping(template.spec, "nodeSelector") else "affinity.nodeAffinity"
            count = (
                "the only node does not match"
                if len(nodes) == 1
                else f"none of the {len(nodes)} nodes matches"
            )
            yield Finding(
                f"{template.spec_path}.{field}",
                f"The pods stay Pending: {count} their node selector and required node affinity, and "
                "gpu-affinity.yaml declares that no nodes are added (fixedSize).",
                "Correct the node selector or affinity, or label a node.",
            )


RULE = rule(__name__, check)
