"""readiness-before-liveness: containers that take traffic before liveness looks at them."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.kube.json import mapping
from policies.kube.pods import Role
from policies.probes.own_servers import is_own_server
from policies.probes.probe import STARTUP, Probe, check_of, is_written, liveness_and_readiness
from policies.probes.start import budget_of

SHORTEST_GUESS: Final = 60
"""Seconds of a liveness delay below which it is no guess at a start: operators are generated with 15."""


def check(target: Target, facts: Facts) -> Findings:
    for liveness, readiness in liveness_and_readiness(target):
        if mapping(liveness.container.spec, STARTUP) or readiness.delay >= liveness.delay:
            continue
        if liveness.delay < SHORTEST_GUESS:
            continue
        if liveness.container.role is Role.SIDECAR:  # a startupProbe would hold back the containers after it
            continue
        if _waits_as_injected(liveness, readiness, facts):
            continue
        if not is_written(target, readiness) or not is_written(target, liveness):
            continue
        if not is_own_server(liveness.template, liveness.container, facts):
            continue
        yield Finding(
            readiness.at("initialDelaySeconds"),
            f"Container {readiness.container.name} can get traffic {readiness.delay} s after its start, but "
            f"liveness begins after {liveness.delay} s: a server that hangs during the first "
            f"{liveness.delay} s is not restarted.",
            "Add a startupProbe and remove both initialDelaySeconds: the others begin once it has passed.",
        )


def _waits_as_injected(liveness: Probe, readiness: Probe, facts: Facts) -> bool:
    """Whether liveness is a copy of readiness that waits for the whole startup budget: `standard-probes` adds
    such ones, for only the server's own liveness may be asked at its start."""
    if check_of(liveness) != check_of(readiness):
        return False
    return liveness.delay >= budget_of(liveness.template.pod, liveness.container, facts).seconds


RULE = rule(__name__, check, requires=(PodFeature.LIVENESS, PodFeature.READINESS))
