"""readiness-without-liveness: serving containers that leave their Service when they hang, and stay away."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.probes.missing_liveness import called, what_to_write, without_liveness
from policies.probes.probe import LIVENESS, READINESS, is_written, probe_of


def check(target: Target, facts: Facts) -> Findings:
    for found in without_liveness(target, facts):
        hidden = [
            (template, each)
            for template, each in found
            if (readiness := probe_of(template, each, READINESS)) and is_written(target, readiness)
        ]
        if not hidden:
            continue
        template, first = hidden[0]
        verb = "has" if len(hidden) == 1 else "have"
        yield Finding(
            template.at(first, LIVENESS),
            f"{called([each for _, each in hidden])} {verb} a readinessProbe and no livenessProbe: a server "
            "that hangs gets no traffic, and kubelet does not restart it.",
            what_to_write(first, facts)
            or "Add a livenessProbe on a cheap local endpoint, more patient than the readinessProbe.",
        )


RULE = rule(__name__, check, requires=(PodFeature.READINESS,))
