"""autoscaler-of-owned-object: autoscalers of workloads whose replicas an operator sets."""

from __future__ import annotations

from policies.autoscaling.owners import owner_of
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import AUTOSCALER, SCALED_OBJECT
from policies.kube.objects.scaling import HorizontalPodAutoscaler, ScaledObject


def check(target: Target, facts: Facts) -> Findings:
    if target.kind == AUTOSCALER:
        reference = target.read(HorizontalPodAutoscaler).spec.scale_target_ref
    else:
        reference = target.read(ScaledObject).spec.scale_target_ref
    owned = owner_of(reference, facts)
    if owned is None:
        return
    kind = owned.owner.group_kind.kind
    yield Finding(
        "spec.scaleTargetRef",
        f"The kind {kind} has no scale subresource, so the autoscaler can't scale it."
        if owned.itself
        else (
            f"{kind} {owned.name} owns {reference.kind} {reference.name}, and its operator resets the "
            "replicas."
        ),
        f"Use {owned.owner.instead}.",
    )


RULE = rule(__name__, check, (AUTOSCALER, SCALED_OBJECT), unowned=True)
