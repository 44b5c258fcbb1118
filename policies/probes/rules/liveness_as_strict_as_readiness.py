"""liveness-as-strict-as-readiness: liveness that gives up no later than readiness on the same check."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.needs import Need
from policies.core.target import Target
from policies.probes.probe import (
    liveness_and_readiness,
)


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    for liveness, readiness in liveness_and_readiness(target):
        if not liveness.asks_as(readiness) or liveness.give_up > readiness.give_up:
            continue
        yield Finding(
            liveness.at("failureThreshold"),
            f"Liveness and readiness of container {liveness.container.name} ask the same, and liveness gives "
            f"up after {liveness.give_up} s, readiness after {readiness.give_up} s: overload restarts the "
            "container instead of taking traffic off it.",
            f"Let liveness give up later: periodSeconds * failureThreshold above {readiness.give_up}, better "
            "twice that.",
        )


RULE = rule(__name__, check, needs=(Need.LIVENESS, Need.READINESS))
