"""liveness-as-strict-as-readiness: liveness that gives up no later than readiness on the same check."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.kube.json import mapping
from policies.probes.own_servers import is_own_server
from policies.probes.probe import OF_FILES, Probe, liveness_and_readiness

PATIENT: Final = 60
"""Seconds of failures after which a restart is no answer to a burst of requests any more."""


def check(target: Target, facts: Facts) -> Findings:
    for liveness, readiness in liveness_and_readiness(target):
        if not liveness.asks_as(readiness) or liveness.give_up > readiness.give_up:
            continue
        if liveness.give_up >= PATIENT or not _load_fails(liveness):
            continue
        if not is_own_server(liveness.template, liveness.container, facts):
            continue
        yield Finding(
            liveness.at("failureThreshold"),
            f"Liveness and readiness of container {liveness.container.name} make the same check. Liveness "
            f"gives up after {liveness.give_up} s and readiness after {readiness.give_up} s, so overload "
            "restarts the container before it gets less traffic.",
            f"Give liveness more time: periodSeconds * failureThreshold above {readiness.give_up}, better "
            f"{PATIENT} or more.",
        )


def _load_fails(probe: Probe) -> bool:
    """Whether a busy server may fail a check: the kernel accepts connections for it, and a file stays."""
    if mapping(probe.spec, "tcpSocket"):
        return False
    commands = probe.command.commands
    return not commands or any(command.name not in OF_FILES for command in commands)


RULE = rule(__name__, check, requires=(PodFeature.LIVENESS, PodFeature.READINESS))
