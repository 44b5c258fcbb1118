"""liveness-missing: serving containers that are not restarted when they hang."""

from __future__ import annotations

from policies.core.contracts import Facts, Findings, Target, rule
from policies.probes.missing_liveness import missing_liveness
from policies.probes.probe import READINESS


def check(target: Target, facts: Facts) -> Findings:
    return missing_liveness(
        target,
        facts,
        lambda _, container: not container.spec.get(READINESS),
        ("serves requests but has", "serve requests but have"),
        "no livenessProbe. If a server hangs, the kubelet doesn't restart it.",
        "Add a livenessProbe on a local health endpoint, or name the endpoint in the annotation "
        "mlchassis.dev/health-path of the pod template.",
    )


RULE = rule(__name__, check)
