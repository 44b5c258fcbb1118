"""readiness-without-liveness: serving containers that stop getting traffic when they hang, and no restart."""

from __future__ import annotations

from policies.core.contracts import Facts, Findings, PodFeature, PodTemplate, Target, rule
from policies.kube.pods import Container
from policies.probes.missing_liveness import missing_liveness
from policies.probes.probe import READINESS, probe_of


def check(target: Target, facts: Facts) -> Findings:
    return missing_liveness(
        target,
        facts,
        _has_readiness,
        ("has", "have"),
        "a readinessProbe but no livenessProbe. If a server hangs, it gets no traffic, but the kubelet "
        "doesn't restart it.",
        "Add a livenessProbe on a cheap local endpoint that fails later than the readinessProbe.",
    )


def _has_readiness(template: PodTemplate, container: Container) -> bool:
    readiness = probe_of(template, container, READINESS)
    return readiness is not None and readiness.is_user_written


RULE = rule(__name__, check, requires=(PodFeature.READINESS,))
