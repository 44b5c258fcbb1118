"""liveness-single-failure: liveness that restarts the container after one failure."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.probes.first_party import is_first_party
from policies.probes.probe import LIVENESS, probes
from policies.probes.rules.liveness_as_strict_as_readiness import is_too_strict
from policies.probes.rules.probe_always_passes import always_passes


def check(target: Target, facts: Facts) -> Findings:
    for probe in probes(target, LIVENESS):
        if probe.failures > 1 or always_passes(probe) or is_too_strict(probe, facts):
            continue
        if is_first_party(probe.template, probe.container, facts):
            yield Finding(
                probe.at("failureThreshold"),
                f"The {probe.name} has failureThreshold 1. One slow or lost answer restarts the container, "
                "and overload restarts all replicas.",
                "Set failureThreshold to 3 or more; 6 suits a model server.",
                value=6,
            )


RULE = rule(__name__, check, requires=(PodFeature.LIVENESS,))
