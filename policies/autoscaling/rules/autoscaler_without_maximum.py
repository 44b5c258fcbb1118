"""autoscaler-without-maximum: ScaledObjects that may make 100 pods with accelerators."""

from __future__ import annotations

from policies.accelerators.requests import wants_accelerator
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.facts import BY_NAME
from policies.core.resources import Resource
from policies.kube.group_kinds import SCALED_OBJECT
from policies.kube.json import Json, mapping, text
from policies.kube.objects.scaling import ScaledObject


def check(target: Target, facts: Facts) -> Findings:
    scaled = target.read(ScaledObject).spec
    if scaled.max_replica_count is not None or not scaled.scale_target_ref.name:
        return
    kind, name = scaled.scale_target_ref.kind or "Deployment", scaled.scale_target_ref.name
    if any(wants_accelerator(facts.view(pod), facts) for pod in _pods(kind, name, facts)):
        yield Finding(
            "spec",
            f"The ScaledObject has no maxReplicaCount, so KEDA adds up to 100 pods of {kind} {name}, each "
            "with accelerators.",
            "Set maxReplicaCount to the number of pods for which there are accelerators.",
        )


def _pods(kind: str, name: str, facts: Facts) -> list[Json]:
    """The pod templates of the workload; without their containers in the webhook's cache."""
    workloads = facts.listing(Resource.WORKLOADS)
    named = () if workloads is None else workloads.by(BY_NAME)[name]
    return [mapping(workload, "spec", "template") for workload in named if text(workload, "kind") == kind]


RULE = rule(__name__, check, (SCALED_OBJECT,))
