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
        ("serves and has", "serve and have"),
        "no livenessProbe: if a server hangs, the kubelet does not restart it.",
        "Add a livenessProbe on a local health endpoint, or name the endpoint in the pod template's "
        "annotation mlchassis.dev/health-path.",
    )


RULE = rule(__name__, check)
