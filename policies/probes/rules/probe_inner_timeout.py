"""probe-inner-timeout: probe commands whose own timeouts exceed timeoutSeconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.probes.probe import LIVENESS, READINESS, STARTUP, ContainerProbe, probes


def check(target: Target, facts: Facts) -> Findings:
    for same in _with_one_command(target):
        probe, seconds = same[0], same[0].command.seconds
        if seconds == math.inf:
            found = "may wait forever"
            hint = "Try only once in each probe, because the kubelet repeats the probe every period."
        else:
            found = f"may take {seconds:g} s by its own timeouts"
            hint = (
                "Keep the sum of the inner timeouts below timeoutSeconds, or raise timeoutSeconds above "
                f"{seconds:g}."
            )
        which = f"{' and '.join(each.which for each in same)} probe{'s' if same[1:] else ''}"
        yield Finding(
            probe.at("exec.command"),
            f"The command of the {which} of container {probe.container.name} {found}, but the kubelet ends "
            f"it after {probe.timeout} s. The slow case always counts as a failure.",
            hint,
        )


def _with_one_command(target: Target) -> Iterable[Sequence[ContainerProbe]]:
    """The probes whose command takes too long, together if they have the same one."""
    found: dict[object, list[ContainerProbe]] = {}
    for probe in probes(target, LIVENESS, READINESS, STARTUP):
        if probe.typed.exec is not None and probe.command.seconds > probe.timeout:
            same = probe.container, probe.timeout, probe.typed.exec.command
            found.setdefault(same, []).append(probe)
    return found.values()


RULE = rule(__name__, check, requires=(PodFeature.EXEC,))
