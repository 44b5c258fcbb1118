"""rollout-takes-all-down: rollouts that stop every replica at once."""

from __future__ import annotations

from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import ROLLOUT, SERVING, STATEFUL_SET
from policies.kube.objects.scaling import HorizontalPodAutoscaler
from policies.kube.objects.workloads import Rollout
from policies.probes.serving import serving_containers
from policies.rollouts.rollouts import is_recreate, minimum_replicas, rolling_update


def check(target: Target, facts: Facts) -> Findings:
    replicas = minimum_replicas(target, facts)
    if replicas < 2 or not any(serving_containers(template.view, facts) for template in target.templates):
        return
    if is_recreate(target):
        yield Finding(
            "spec.strategy.type",
            f"Strategy Recreate stops all {replicas} replicas before the first new one starts. Every "
            "change is an outage of at least one start.",
            "Use RollingUpdate, or keep Recreate only if two versions can't run side by side.",
            Certainty.LIKELY,
        )
        return
    update = rolling_update(target, replicas)
    if update is None or update.unavailable < replicas or _has_steps(target):
        return
    if target.kind == STATEFUL_SET:  # the API server drops the field unless MaxUnavailableStatefulSet is on
        yield Finding(
            "spec.updateStrategy.rollingUpdate.maxUnavailable",
            f"On a cluster with the feature MaxUnavailableStatefulSet, all {replicas} replicas may be "
            "unavailable at once. A rollout takes them all down together, and with one bad image, no pod "
            "serves.",
            f"Set maxUnavailable below {replicas}, or omit it.",
            Certainty.LIKELY,
        )
        return
    has_unknown_minimum = facts.is_unread(HorizontalPodAutoscaler)
    yield Finding(
        update.path,
        f"All {replicas} replicas may be unavailable at once. A rollout takes them all down together, "
        "and with one bad image, no pod serves.",
        f"Set maxUnavailable below {replicas}: 1, 25%, or 0 with a maxSurge.",
        Certainty.LIKELY if has_unknown_minimum else Certainty.CERTAIN,
    )


def _has_steps(target: Target) -> bool:
    """Whether a canary replaces only a part of the pods at first."""
    canary = target.read(Rollout).spec.strategy.canary if target.kind == ROLLOUT else None
    return canary is not None and bool(canary.steps)


RULE = rule(__name__, check, SERVING)
