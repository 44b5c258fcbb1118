"""single-replica-eviction: servers that one eviction stops completely."""

from __future__ import annotations

from policies.accelerators.requests import wants_accelerator
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.disruption.single_state import may_run_alone
from policies.kube.group_kinds import DEPLOYMENT, STATEFUL_SET
from policies.kube.json import Json
from policies.kube.objects.scaling import HorizontalPodAutoscaler
from policies.kube.objects.workloads import Replicated
from policies.probes.serving import recognised, serving_containers
from policies.rollouts.rollouts import minimum_replicas


def check(target: Target, facts: Facts) -> Findings:
    given = target.read(Replicated).spec.replicas
    if given is None and facts.objects(HorizontalPodAutoscaler) is None:
        return  # an unknown autoscaler may set it
    if minimum_replicas(target, facts) != 1 or may_run_alone(target, facts):
        return
    if any(_is_slow(t.pod, facts) for t in target.templates):
        yield Finding(
            "spec.replicas",
            "Only one replica serves: if its node is drained or fails, no pod serves until another one has "
            "been scheduled and has loaded its model.",
            "Run two replicas with a PodDisruptionBudget of maxUnavailable 1, or accept the gap with an "
            "exemption.",
        )


def _is_slow(pod: Json, facts: Facts) -> bool:
    """Whether a pod serves a model, so that its replacement starts slowly."""
    serving = serving_containers(pod, facts)
    return bool(serving) and (
        wants_accelerator(pod, facts) or any(recognised(container, facts) for container in serving)
    )


RULE = rule(__name__, check, (DEPLOYMENT, STATEFUL_SET))
