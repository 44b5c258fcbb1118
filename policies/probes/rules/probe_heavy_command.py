"""probe-heavy-command: probe commands whose cost grows with the data."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, Target, rule
from policies.probes.heavy_commands import heavy_work
from policies.probes.probe import LIVENESS, READINESS, STARTUP, probes

_CONSEQUENCE: Final = {
    Certainty.CERTAIN: "Under load, the check competes with the server, times out, and fails.",
    Certainty.LIKELY: "Its cost is unknown, and under load, it may time out and fail.",
}


def check(target: Target, facts: Facts) -> Findings:
    for probe in probes(target, LIVENESS, READINESS, STARTUP):
        found = heavy_work(probe.command)
        if found is None:
            continue
        what, certainty = found
        yield Finding(
            probe.at("exec.command"),
            f"The {probe.name} {what}, every {probe.period} s. {_CONSEQUENCE[certainty]}",
            "Check the server itself with httpGet or grpc, and do such work only once: at startup or in a "
            "CronJob.",
            Certainty.LIKELY if probe.field == STARTUP else certainty,
        )


RULE = rule(__name__, check, requires=(PodFeature.EXEC,))
