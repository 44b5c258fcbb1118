"""liveness-kills-slow-start: liveness that fails before the start is complete."""

from __future__ import annotations

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, Target, rule
from policies.core.mode import Mode
from policies.kube.pods import Role
from policies.probes.copied import is_sendable
from policies.probes.liveness_program import watched_start
from policies.probes.probe import LIVENESS, Probe, probes
from policies.probes.standard_probes_settings import StandardProbes
from policies.probes.startup_budget import start_of


def check(target: Target, facts: Facts) -> Findings:
    for probe in probes(target, LIVENESS):
        if _is_guarded(probe, facts) or not is_sendable(probe.container, probe.spec):
            continue  # the kubelet ignores a probe that it cannot send
        start = start_of(probe.template.pod, probe.container, facts)
        budget = probe.typed.startup_deadline
        if start is None or budget >= start.seconds:
            continue
        killed = "kubelet kills it" + ("" if probe.template.completes else " again and again")
        yield Finding(
            probe.at(),
            f"The {probe.name} kills it {budget} s after its start, but it takes about {start.seconds} s "
            f"until it serves ({start.reason}): {killed}, and it never serves.",
            _slow_start_hint(probe, start.seconds),
            Certainty.CERTAIN if start.declared or budget < start.usual else Certainty.UNDECIDED,
        )


def _slow_start_hint(probe: Probe, expected: int) -> str:
    if probe.container.role is Role.SIDECAR:  # a startupProbe would delay the containers after it
        return f"Set initialDelaySeconds of the livenessProbe above {expected}."
    return f"Add a startupProbe with the same check and periodSeconds * failureThreshold above {expected}."


def _is_guarded(probe: Probe, facts: Facts) -> bool:
    """Whether a startupProbe delays liveness, or the webhook will add one to pods that are not projected. The
    webhook's own program waits for the start itself."""
    if probe.container.typed.startup_probe is not None or watched_start(probe.spec):
        return True
    fills = facts.settings(StandardProbes).mode in (None, Mode.ENFORCE)
    later = probe.template.is_ray or bool(probe.template.container_path)
    return later and probe.container.role is Role.MAIN and fills


RULE = rule(__name__, check, requires=(PodFeature.LIVENESS,))
