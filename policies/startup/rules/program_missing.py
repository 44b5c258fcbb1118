"""program-missing: probes, and loops that wait, by a program that the image lacks."""

from __future__ import annotations

import posixpath
from typing import Final

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.probes.probe import LIVENESS, READINESS, STARTUP, probes
from policies.startup.missing_programs import endless_waits, missing_in_probe

_NOT_RUN: Final = {
    LIVENESS: "the kubelet drops each attempt and never restarts a hung container",
    READINESS: "the pod never becomes ready",
    STARTUP: "the kubelet drops each attempt, and the container neither starts nor restarts",
}
_FAILS: Final = {
    LIVENESS: "the kubelet restarts the container again and again",
    READINESS: "the pod never becomes ready",
    STARTUP: "the kubelet restarts the container again and again",
}
"""What happens if a shell does not find the program: its exit status is 127."""


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        for container, missing in endless_waits(template, facts):
            yield Finding(
                template.command_path(container),
                f"Container {container.name} waits until {missing} succeeds, which {container.image} doesn't "
                "contain. The shell doesn't find it in any round, and the loop never ends.",
                f"Wait with a program of the image, or use an image with {missing}.",
            )
    for probe in probes(target, LIVENESS, READINESS, STARTUP):
        if missing := missing_in_probe(probe, facts):
            words = () if probe.typed.exec is None else probe.typed.exec.command
            then = _FAILS if posixpath.basename(words[0]) != missing else _NOT_RUN
            yield Finding(
                probe.at("exec.command"),
                f"The {probe.name} runs {missing}, which {probe.container.image} doesn't contain: "
                f"{then[probe.field]}.",
                "Use httpGet, which needs no program in the image.",
            )


RULE = rule(__name__, check)
