"""single-replica-eviction: servers that one drain stops completely."""

from __future__ import annotations

from typing import Final

from policies.accelerators.requests import is_large
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.disruption.budgets import budgets_of
from policies.disruption.single_state import may_run_alone, starts_slowly
from policies.kube.group_kinds import SERVING
from policies.kube.node_pools import MAX_POOLS, POOL, why_no_node
from policies.kube.objects.nodes import NodePool
from policies.kube.objects.pods import PodSpec
from policies.kube.objects.scaling import HorizontalPodAutoscaler, PodDisruptionBudget
from policies.kube.objects.workloads import Replicated
from policies.kube.scheduling import is_within_limits
from policies.probes.serving import recognised, serving_containers
from policies.probes.startup_budget import start_of
from policies.rollouts.rollouts import minimum_replicas

_LONG: Final = 600
"""Seconds of a start that is too long to be repeated for a cheaper node."""
_KEPT: Final = ("karpenter.sh/do-not-disrupt", "karpenter.sh/do-not-evict")
"""Annotations that keep Karpenter from removing a pod's node."""


def check(target: Target, facts: Facts) -> Findings:
    given = target.read(Replicated).spec.replicas
    if given is None and facts.objects(HorizontalPodAutoscaler) is None:
        return  # an unknown autoscaler may set it
    replicas = minimum_replicas(target, facts)
    if replicas == 2 and not _is_guarded(target, facts):
        if any(starts_slowly(t.view, facts) and is_large(t.view, facts) for t in target.templates):
            yield Finding(
                "spec.replicas",
                "No PodDisruptionBudget selects the two replicas. If a drain reaches the second node "
                "before the first pod's replacement has loaded its model, no pod serves.",
                "Add a PodDisruptionBudget with maxUnavailable 1 and unhealthyPodEvictionPolicy AlwaysAllow.",
                Certainty.LIKELY,
            )
        return
    if replicas != 1:
        return
    moved = next(filter(None, (_moved(each, facts) for each in target.templates)), None)
    labels = target.read(Replicated).spec.template.metadata.labels
    if moved is not None and facts.whole is not None and not any(budgets_of(labels, facts)):
        yield moved
    elif may_run_alone(target, facts):
        return
    elif any(starts_slowly(t.view, facts) for t in target.templates):
        yield Finding(
            "spec.replicas",
            "Only one replica serves. If its node is drained or fails, no pod serves until another one has "
            "been scheduled and has loaded its model.",
            "Run two replicas with a PodDisruptionBudget of maxUnavailable 1, or accept the gap with an "
            "exemption.",
        )


def _moved(template: PodTemplate, facts: Facts) -> Finding | None:
    """A finding about pods that start for long, if Karpenter may remove any node that it creates for them."""
    pools, pod = facts.cluster_objects(NodePool), template.typed
    if not pools or len(pools) > MAX_POOLS or not is_within_limits(pod.spec) or pod.spec.node_name:
        return None
    if any(pod.metadata.annotations.get(key) == "true" for key in _KEPT):
        return None
    starts = (
        start_of(template.view, each, facts)
        for each in serving_containers(template.view, facts)
        if (server := recognised(each, facts)) is not None and server.preset.loads_model
    )
    long = max(filter(None, starts), key=lambda each: each.seconds, default=None)
    if long is None or long.seconds < _LONG:
        return None
    able = [pool for pool in pools if why_no_node(pod.spec, pool) is None]
    meant = [pool.name for pool in able if _is_meant(pool, pod.spec)]
    if not meant or not all(pool.moves_pods for pool in able):
        return None
    return Finding(
        "spec.replicas",
        f"Karpenter may remove the node of the only replica to save cost at any time (NodePool {meant[0]}), "
        "also while it loads its model. No pod serves until another one has started "
        f"({long.reason}).",
        f'Set the annotation {_KEPT[0]}: "true" on the pods, or consolidationPolicy: WhenEmpty in the '
        "NodePool.",
        Certainty.LIKELY,
    )


def _is_meant(pool: NodePool, pod: PodSpec) -> bool:
    """Whether a pod asks for the nodes of a NodePool, by a label or a taint that only these have."""
    labels = {**pool.spec.template.metadata.labels, POOL: pool.name}
    if any(labels.get(key) == value for key, value in pod.node_selector.items()):
        return True
    keys = {each.key for each in pool.spec.template.spec.taints}
    return any(each.key in keys for each in pod.tolerations)


def _is_guarded(target: Target, facts: Facts) -> bool:
    """Whether a PodDisruptionBudget selects the pods or may do so: at admission, the next object may."""
    if facts.whole is None:
        return True
    labels = target.read(Replicated).spec.template.metadata.labels
    return facts.objects(PodDisruptionBudget) is None or any(budgets_of(labels, facts))


RULE = rule(__name__, check, SERVING)
