"""program-missing: containers, hooks, probes, and loops that wait, by a program that the image lacks."""

from __future__ import annotations

import posixpath
from typing import Final

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.probes.probe import LIVENESS, READINESS, STARTUP, probes
from policies.startup.missing_programs import (
    endless_waits,
    missing_at_start,
    missing_in_hook,
    missing_in_probe,
)

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
_OF_HOOK: Final = {
    "postStart": "the kubelet ends the container each time that it has started",
    "preStop": "the hook fails at once, and the container gets SIGTERM without what it was for",
}


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        for container in template.containers():
            missing, is_start = missing_at_start(template, container, facts)
            if missing:
                then = "the container never starts" if is_start else "the shell doesn't find it"
                yield Finding(
                    template.command_path(container),
                    f"Container {container.name} runs {missing}, which {container.image} doesn't contain: "
                    f"{then}.",
                    f"Run a program of the image, or use an image with {missing}.",
                )
            for hook, missing in missing_in_hook(template, container, facts):
                yield Finding(
                    template.at(container, f"lifecycle.{hook}.exec.command"),
                    f"The {hook} hook runs {missing}, which {container.image} doesn't contain: "
                    f"{_OF_HOOK[hook]}.",
                    "Use the hook's own sleep or httpGet, or an image with the program.",
                )
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
            outcome = _FAILS if posixpath.basename(words[0]) != missing else _NOT_RUN
            yield Finding(
                probe.at("exec.command"),
                f"The {probe.name} runs {missing}, which {probe.container.image} doesn't contain: "
                f"{outcome[probe.field]}.",
                "Use httpGet, which needs no program in the image.",
            )


RULE = rule(__name__, check)
