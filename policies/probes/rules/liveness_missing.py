"""liveness-missing: serving containers that are not restarted when they hang."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.probes.missing_liveness import called, what_to_write, without_liveness
from policies.probes.probe import LIVENESS


def check(target: Target, facts: Facts) -> Findings:
    for found in without_liveness(target, facts):
        unasked = [(template, each) for template, each in found if not each.spec.get("readinessProbe")]
        if not unasked:
            continue
        template, first = unasked[0]
        verb = "serves and has" if len(unasked) == 1 else "serve and have"
        yield Finding(
            template.at(first, LIVENESS),
            f"{called([each for _, each in unasked])} {verb} no livenessProbe: if a server hangs, kubelet "
            "does not restart it.",
            what_to_write(first, facts)
            or "Add a livenessProbe on a local health endpoint, or name the endpoint in the pod "
            "template's annotation mlchassis.dev/health-path.",
        )


RULE = rule(__name__, check)
