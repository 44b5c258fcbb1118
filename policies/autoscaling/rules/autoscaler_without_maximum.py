"""autoscaler-without-maximum: ScaledObjects that may make 100 pods with accelerators."""

from __future__ import annotations

from policies.accelerators.requests import wants_accelerator
from policies.core.autoscalers import pods_of
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import SCALED_OBJECT
from policies.kube.objects.scaling import KEDA_MOST, ScaledObject


def check(target: Target, facts: Facts) -> Findings:
    scaled = target.read(ScaledObject).spec
    if scaled.max_replica_count is not None or not scaled.scale_target_ref.name:
        return
    kind, name = scaled.scale_target_ref.kind or "Deployment", scaled.scale_target_ref.name
    if any(wants_accelerator(pod, facts) for pod in pods_of(scaled.scale_target_ref, facts)):
        yield Finding(
            "spec",
            f"The ScaledObject has no maxReplicaCount, so KEDA scales {kind} {name} to as many as "
            f"{KEDA_MOST} pods, each with accelerators.",
            "Set maxReplicaCount to the number of pods that you have accelerators for.",
        )


RULE = rule(__name__, check, (SCALED_OBJECT,))
