"""single-replica-eviction: servers that one drain stops completely."""

from __future__ import annotations

from policies.accelerators.requests import is_large
from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.disruption.budgets import budgets_of
from policies.disruption.single_state import may_run_alone, starts_slowly
from policies.kube.group_kinds import SERVING
from policies.kube.objects.scaling import HorizontalPodAutoscaler, PodDisruptionBudget
from policies.kube.objects.workloads import Replicated
from policies.rollouts.rollouts import minimum_replicas


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
    if replicas != 1 or may_run_alone(target, facts):
        return
    if any(starts_slowly(t.view, facts) for t in target.templates):
        yield Finding(
            "spec.replicas",
            "Only one replica serves. If its node is drained or fails, no pod serves until another one has "
            "been scheduled and has loaded its model.",
            "Run two replicas with a PodDisruptionBudget of maxUnavailable 1, or accept the gap with an "
            "exemption.",
        )


def _is_guarded(target: Target, facts: Facts) -> bool:
    """Whether a PodDisruptionBudget selects the pods or may do so: at admission, the next object may."""
    if facts.whole is None:
        return True
    labels = target.read(Replicated).spec.template.metadata.labels
    return facts.objects(PodDisruptionBudget) is None or any(budgets_of(labels, facts))


RULE = rule(__name__, check, SERVING)
