"""exec-probe-default-timeout: liveness commands with a timeout of one second."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.probes.first_party import is_first_party
from policies.probes.probe import LIVENESS, probes

LENIENT: Final = 60
"""Seconds of failures. A node is not overloaded for that long."""


def check(target: Target, facts: Facts) -> Findings:
    for probe in probes(target, LIVENESS):
        if probe.typed.exec is None or probe.timeout > 1 or probe.give_up >= LENIENT:
            continue
        if not is_first_party(probe.template, probe.container, facts):
            continue
        yield Finding(
            probe.at("timeoutSeconds"),
            f"The {probe.name} starts a process with a timeout of 1 s. On a busy node, starting it takes "
            f"longer, and after {probe.give_up} s kubelet restarts the container.",
            "Set timeoutSeconds to 5 or more, or use httpGet or grpc.",
        )


RULE = rule(__name__, check, requires=(PodFeature.LIVENESS, PodFeature.EXEC))
