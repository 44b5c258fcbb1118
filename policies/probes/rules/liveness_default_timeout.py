"""liveness-default-timeout: liveness of a model server with a timeout of one second."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.kube.json import mapping
from policies.probes.probe import LIVENESS, probes
from policies.probes.rules.liveness_gives_up_early import TOO_SOON
from policies.probes.serving import recognised

LENIENT: Final = 60
"""Seconds of failures. A burst of requests is over by then."""


def check(target: Target, facts: Facts) -> Findings:
    for probe in probes(target, LIVENESS):
        if probe.timeout > 1 or not TOO_SOON < probe.give_up < LENIENT or not mapping(probe.spec, "httpGet"):
            continue
        server = recognised(probe.container, facts)
        if server is None or not (server.preset.loads_model or server.preset.expected_start):
            continue
        yield Finding(
            probe.at("timeoutSeconds"),
            f"The {probe.name} waits 1 s for an answer of {server.name}, which answers later under load: "
            f"after {probe.give_up} s kubelet restarts a server that works.",
            "Set timeoutSeconds to 5 or more.",
        )


RULE = rule(__name__, check, requires=(PodFeature.LIVENESS,))
