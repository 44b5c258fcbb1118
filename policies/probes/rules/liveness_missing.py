"""liveness-missing: serving containers that nothing restarts when they hang."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.target import Target
from policies.probes.liveness import what_to_write, without_liveness


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    for path, container in without_liveness(target, facts):
        if not container.spec.get("readinessProbe"):
            yield Finding(
                path,
                f"Container {container.name} serves and has no livenessProbe: when it hangs, nothing "
                "restarts it.",
                what_to_write(container, facts)
                or "Add a livenessProbe on a local health endpoint, or name the endpoint in the pod "
                "template's annotation mlchassis.dev/health-path.",
            )


RULE = rule(__name__, check)
