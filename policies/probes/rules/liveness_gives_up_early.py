"""liveness-gives-up-early: liveness that restarts a model server after seconds of slow answers."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.core.reasons import in_words
from policies.kube.json import mapping
from policies.probes.probe import LENIENT, LIVENESS, probes
from policies.probes.serving import recognised

TOO_SOON: Final = 10
"""Seconds. A burst of requests, a garbage collection or the load of an adapter lasts as long."""


def check(target: Target, facts: Facts) -> Findings:
    for probe in probes(target, LIVENESS):
        if probe.give_up > TOO_SOON or probe.failures == 1 or mapping(probe.spec, "tcpSocket"):
            continue  # another rule reports a single failure; the kernel accepts connections
        server = recognised(probe.container, facts)
        if server is None or not (server.preset.loads_model or server.preset.expected_start):
            continue
        start = server.preset.expected_start
        begins = "loads its model again" if server.preset.loads_model else "starts again"
        takes = f", which usually takes {in_words(start)}" if start else ""
        yield Finding(
            probe.at("failureThreshold"),
            f"The {probe.name} gives up after {probe.give_up} s: slow answers for so long, as under a burst "
            f"of requests, restart {server.name}, which then {begins}{takes}.",
            f"Give it {LENIENT} s or more: periodSeconds * failureThreshold.",
        )


RULE = rule(__name__, check, requires=(PodFeature.LIVENESS,))
