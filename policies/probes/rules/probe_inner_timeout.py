"""probe-inner-timeout: probe commands whose own timeouts exceed timeoutSeconds."""

from __future__ import annotations

import math

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.probes.probe import LIVENESS, READINESS, STARTUP, probes


def check(target: Target, facts: Facts) -> Findings:
    for probe in probes(target, LIVENESS, READINESS, STARTUP):
        seconds = probe.command.seconds
        if seconds <= probe.timeout:
            continue
        if seconds == math.inf:
            found = "may wait forever"
            hint = "Try only once in each probe, because the kubelet repeats the probe every period."
        else:
            found = f"may take {seconds:g} s by its own timeouts"
            hint = (
                "Keep the sum of the inner timeouts below timeoutSeconds, or raise timeoutSeconds above "
                f"{seconds:g}."
            )
        yield Finding(
            probe.at("exec.command"),
            f"The command of the {probe.name} {found}, but the kubelet ends it after {probe.timeout} s. "
            "The slow case always counts as a failure.",
            hint,
        )


RULE = rule(__name__, check, requires=(PodFeature.EXEC,))
