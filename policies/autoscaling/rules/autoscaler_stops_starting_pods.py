"""autoscaler-stops-starting-pods: ScaledObjects that stop all pods before a start can end.

Source: `scaleToZeroOrIdle` in pkg/scaling/executor/scale_scaledobjects.go of KEDA 2.21. It counts from the
last time at which a trigger was active, and does not ask whether pods are ready.
"""

from __future__ import annotations

from typing import Final

from policies.autoscaling.zero import activating, counted_window, stops_all
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.reasons import in_words
from policies.core.scaled_objects import pods_of
from policies.kube.group_kinds import SCALED_OBJECT
from policies.kube.objects.metadata import ObjectReference
from policies.kube.objects.scaling import ScaledObject
from policies.kube.pods import Role
from policies.probes.startup_budget import Start, start_of

_PAUSING: Final = "autoscaling.keda.sh/"
"""Annotations with this domain pause KEDA, or keep pods without an active trigger."""
_MARGIN: Final = 4
"""An estimated start counts if it takes so many times as long: `loadRate` is the rate of slow storage."""


def check(target: Target, facts: Facts) -> Findings:
    scaled = target.read(ScaledObject)
    spec = scaled.spec
    if not stops_all(spec) or spec.advanced.scaling_modifiers.formula:
        return
    if any(key.startswith(_PAUSING) for key in scaled.metadata.annotations):
        return
    windows = [counted_window(each) for each in activating(spec)]
    if not windows or None in windows:
        return
    window = max(each for each in windows if each is not None)
    cooldown, polling = spec.cooldown, spec.polling
    found = _longest_start(spec.scale_target_ref, facts)
    if found is None or found.seconds < (window + cooldown + polling) * (1 if found.annotated else _MARGIN):
        return
    reference = spec.scale_target_ref
    yield Finding(
        "spec" if spec.cooldown_period is None else "spec.cooldownPeriod",
        f"KEDA stops all pods {in_words(int(window + cooldown))} after the last request: the query counts it "
        f"for {in_words(int(window))}, and cooldownPeriod is {cooldown} s"
        f"{', the default' if spec.cooldown_period is None else ''}. A start of "
        f"{reference.kind or 'Deployment'} {reference.name} {'takes' if found.annotated else 'may take'} "
        f"{in_words(found.seconds)} ({found.reason}): unless further requests come, its pods are stopped "
        "before they are ready, and the next request begins again.",
        f"Set cooldownPeriod to {found.seconds} or more, or add a trigger that stays active while requests "
        "wait.",
    )


def _longest_start(reference: ObjectReference, facts: Facts) -> Start | None:
    starts = (
        start_of(view, container, facts)
        for view in pods_of(reference, facts)
        for container in view.containers
        if container.role is Role.MAIN
    )
    return max((each for each in starts if each is not None), key=lambda each: each.seconds, default=None)


RULE = rule(__name__, check, (SCALED_OBJECT,))
