"""exec-probe-default-timeout: liveness commands that have one second to start and answer."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.kube.json import mapping
from policies.probes.own_servers import is_own_server
from policies.probes.probe import LIVENESS, probes

PATIENT: Final = 60
"""Seconds of failures that a node's busy moment does not last."""


def check(target: Target, facts: Facts) -> Findings:
    for probe in probes(target, LIVENESS):
        if not mapping(probe.spec, "exec") or probe.timeout > 1 or probe.give_up >= PATIENT:
            continue
        if not is_own_server(probe.template, probe.container, facts):
            continue
        yield Finding(
            probe.at("timeoutSeconds"),
            f"The {probe.name} starts a process with a timeout of 1 s. On a busy node, starting it takes "
            f"longer, and after {probe.give_up} s kubelet restarts the container.",
            "Set timeoutSeconds to 5 or more, or use httpGet or grpc.",
        )


RULE = rule(__name__, check, requires=(PodFeature.LIVENESS, PodFeature.EXEC))
