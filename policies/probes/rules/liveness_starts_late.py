"""liveness-starts-late: liveness that waits for minutes instead of a startupProbe."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.core.reasons import in_words
from policies.probes.first_party import is_third_party
from policies.probes.probe import LIVENESS, probes
from policies.probes.rules.liveness_as_strict_as_readiness import is_too_strict
from policies.probes.rules.probe_always_passes import always_passes
from policies.probes.standard_probes import looks_injected


def check(target: Target, facts: Facts) -> Findings:
    for probe in probes(target, LIVENESS):
        if not probe.starts_late or is_too_strict(probe, facts):
            continue
        if is_third_party(probe.container.image) or always_passes(probe):
            continue  # its project chose the delay, or another rule reports that it restarts nothing
        if not looks_injected(probe.template.view, probe.container, LIVENESS, facts):
            yield Finding(
                probe.at("initialDelaySeconds"),
                f"The {probe.name} begins {in_words(probe.delay)} after each start. A server that hangs "
                "before that isn't restarted, and a start that takes longer than "
                f"{in_words(probe.typed.startup_deadline)} is killed.",
                f"Use a startupProbe with periodSeconds * failureThreshold of {probe.delay} or more, and "
                "no initialDelaySeconds.",
            )


RULE = rule(__name__, check, requires=(PodFeature.LIVENESS,))
