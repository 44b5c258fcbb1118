"""probe-timeout-exceeds-period: probes that may take longer than their period."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.needs import Need
from policies.core.target import Target
from policies.probes.probe import LIVENESS, READINESS, STARTUP, probes


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    for probe in probes(target, LIVENESS, READINESS, STARTUP):
        if probe.timeout > probe.period:
            yield Finding(
                probe.at("timeoutSeconds"),
                f"The {probe.name} may take {probe.timeout} s and is due every {probe.period} s: kubelet "
                "runs one at a time, so slow answers delay the next checks and the verdict comes later than "
                "it reads.",
                f"Set periodSeconds to {probe.timeout} or more, or timeoutSeconds to {probe.period} or less.",
            )


RULE = rule(__name__, check, needs=(Need.PROBE,))
