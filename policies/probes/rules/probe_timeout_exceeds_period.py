"""probe-timeout-exceeds-period: readiness probes whose slow answers delay the next check."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.probes.probe import READINESS, probes

TOLERANCE: Final = 10
"""Seconds by which a failure may be detected later."""


def check(target: Target, facts: Facts) -> Findings:
    for probe in probes(target, READINESS):
        late = probe.timeout * probe.failures
        if probe.timeout <= probe.period or late < probe.give_up + TOLERANCE:
            continue
        yield Finding(
            probe.at("timeoutSeconds"),
            f"The {probe.name} has a timeoutSeconds ({probe.timeout}) longer than its periodSeconds "
            f"({probe.period}): a slow answer delays the next check, and a failure is detected after "
            f"{late} s instead of {probe.give_up} s.",
            f"Set periodSeconds to {probe.timeout} or more, or timeoutSeconds to {probe.period} or less.",
        )


RULE = rule(__name__, check, requires=(PodFeature.READINESS,))
