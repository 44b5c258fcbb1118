"""readiness-before-liveness: containers that get traffic before liveness checks them."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.kube.pods import Role
from policies.probes.first_party import is_first_party
from policies.probes.injected import looks_injected
from policies.probes.probe import LIVENESS, READINESS, ContainerProbe, liveness_and_readiness
from policies.probes.startup_budget import budget_of

SHORTEST_DELAY: Final = 60
"""Seconds. A shorter liveness delay is not meant for a slow start: generated operators have 15."""


def check(target: Target, facts: Facts) -> Findings:
    for liveness, readiness in liveness_and_readiness(target):
        if liveness.container.typed.startup_probe is not None or readiness.delay >= liveness.delay:
            continue
        if liveness.delay < SHORTEST_DELAY:
            continue
        if liveness.container.role is Role.SIDECAR:  # a startupProbe would delay the containers after it
            continue
        if _is_copied(liveness, readiness, facts):
            continue
        if not (readiness.is_user_written and liveness.is_user_written):
            continue
        view, container = readiness.template.view, readiness.container
        if any(looks_injected(view, container, name, facts) for name in (READINESS, LIVENESS)):
            continue
        if not is_first_party(liveness.template, liveness.container, facts):
            continue
        yield Finding(
            readiness.at("initialDelaySeconds"),
            f"Container {readiness.container.name} can get traffic {readiness.delay} s after it starts, "
            f"but liveness begins after {liveness.delay} s. A server that hangs during the first "
            f"{liveness.delay} s isn't restarted.",
            "Add a startupProbe and remove both initialDelaySeconds. The other probes begin once it has "
            "passed.",
        )


def _is_copied(liveness: ContainerProbe, readiness: ContainerProbe, facts: Facts) -> bool:
    """Whether liveness is a copy of readiness with a delay of the startup budget, as `standard-probes` adds
    it."""
    budget = budget_of(liveness.template.view, liveness.container, facts).seconds
    return liveness.delay >= budget and liveness.has_same_check_as(readiness)


RULE = rule(__name__, check, requires=(PodFeature.LIVENESS, PodFeature.READINESS))
