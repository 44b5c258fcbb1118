"""readiness-without-liveness: serving containers that leave their Service when they hang, and stay away."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.target import Target
from policies.probes.liveness import without_liveness


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    for path, container in without_liveness(target, facts):
        if container.spec.get("readinessProbe"):
            yield Finding(
                path,
                f"Container {container.name} has a readinessProbe and no livenessProbe: when it hangs, it "
                "leaves its Service and nothing restarts it.",
                "Add a livenessProbe on a cheap local endpoint, more patient than the readinessProbe.",
            )


RULE = rule(__name__, check)
