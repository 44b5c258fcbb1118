"""startup-kills-slow-start: a startupProbe that gives up before the start is over."""

from __future__ import annotations

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, Target, rule
from policies.kube.probe_timing import kill_budget
from policies.probes.probe import STARTUP, probes
from policies.probes.start import Start, start_of


def check(target: Target, facts: Facts) -> Findings:
    for probe in probes(target, STARTUP):
        if probe.template.completes:
            continue
        start = start_of(probe.template.pod, probe.container, facts)
        budget = kill_budget(probe.spec)
        if start is None or budget * _margin(start) >= start.loading:  # a server's usual start is no ground
            continue
        yield Finding(
            probe.at(),
            f"The {probe.name} kills it {budget} s after its start, but it takes about {start.seconds} s "
            f"until it serves ({start.reason}).",
            f"Raise failureThreshold until periodSeconds * failureThreshold is well above {start.seconds}. "
            "This does not delay a faster start.",
            Certainty.SURE if start.declared else Certainty.UNDECIDED,
        )


def _margin(start: Start) -> int:
    """How many times the estimate may be too long: a size is the amount to load, not the rate."""
    return 1 if start.annotated else 2


RULE = rule(__name__, check, requires=(PodFeature.STARTUP,))
