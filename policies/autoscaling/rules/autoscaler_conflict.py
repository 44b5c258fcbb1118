"""autoscaler-conflict: two autoscalers that set the replicas of one workload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.listing import TypedIndex
from policies.core.scaled_objects import autoscaler_of_scaled_object
from policies.kube.group_kinds import AUTOSCALER, SCALED_OBJECT
from policies.kube.objects.reading import read
from policies.kube.objects.scaling import HorizontalPodAutoscaler

Scaled = tuple[str, str, str]


def check(target: Target, facts: Facts) -> Findings:
    autoscalers = facts.objects(HorizontalPodAutoscaler)
    own = _own(target)
    if autoscalers is None or own is None:
        return
    scaled = _scaled(own)
    others = {each.name for each in autoscalers.by(_BY_TARGET, scaled)} - {own.name}
    if others and scaled[2]:
        other = min(others)
        yield Finding(
            "spec.scaleTargetRef",
            f"HorizontalPodAutoscaler {other} scales {scaled[1]} {scaled[2]}, too: each of them undoes "
            "the changes of the other, and the replicas go up and down.",
            "Keep one autoscaler, and give it the metrics of both.",
        )


def _own(target: Target) -> HorizontalPodAutoscaler | None:
    """The reviewed autoscaler, or the one that KEDA makes. KEDA's own are reported at the ScaledObject."""
    if target.kind == AUTOSCALER:
        return None if target.has_controller else target.read(HorizontalPodAutoscaler)
    made = autoscaler_of_scaled_object(target.obj)
    return None if made is None else read(made, HorizontalPodAutoscaler)


def _scaled(autoscaler: HorizontalPodAutoscaler) -> Scaled:
    reference = autoscaler.spec.scale_target_ref
    return reference.api_version.partition("/")[0], reference.kind, reference.name


def _targets(autoscaler: HorizontalPodAutoscaler) -> Iterator[Scaled]:
    yield _scaled(autoscaler)


_BY_TARGET: Final = TypedIndex(HorizontalPodAutoscaler, _targets)

RULE = rule(__name__, check, (AUTOSCALER, SCALED_OBJECT))
