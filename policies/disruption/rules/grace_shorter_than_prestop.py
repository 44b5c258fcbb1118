"""grace-shorter-than-prestop: hooks that outlast the grace period."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from policies.commands import CommandSummary, Loop, seconds
from policies.containers.commands import exec_command
from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.needs import Need
from policies.core.target import PodTemplate, Target
from policies.kube.json import integer
from policies.kube.pods import DEFAULT_GRACE, Container, Role

_LEAVING: Final = frozenset({"break", "exit", "return", "kill"})


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    for template in target.templates:
        grace = integer(template.spec, "terminationGracePeriodSeconds", default=DEFAULT_GRACE)
        for container in template.containers(Role.MAIN, Role.SIDECAR):
            sleep = _sleep(template, container)
            if sleep > 0 and sleep >= grace:
                length = "forever" if math.isinf(sleep) else f"{sleep:g} s"
                yield Finding(
                    template.at(container, "lifecycle.preStop"),
                    f"The preStop hook of container {container.name} sleeps {length} and the pod has "
                    f"{grace} s to end: the kubelet kills it before SIGTERM gives it time to stop.",
                    "Raise terminationGracePeriodSeconds above the sleep plus the time to finish requests, "
                    "or sleep less.",
                )


def _sleep(template: PodTemplate, container: Container) -> float:
    """Seconds that a container's preStop hook sleeps for certain; 0 where it doesn't."""
    native = integer(container.spec, "lifecycle", "preStop", "sleep", "seconds", default=0)
    return native or _slept(exec_command(template, container, "lifecycle", "preStop"))


def _slept(summary: CommandSummary) -> float:
    """The sleeps of a script, one round of each loop that the script may leave when it likes.

    The summary's own bound tells of branches that exclude each other, and of an enclosing `timeout`.
    """
    if summary.loops and all(_only_sleeps(summary, loop) for loop in summary.loops):
        return summary.seconds
    sleeps = sum(_duration(command.argv[1:]) for command in summary.commands if command.name == "sleep")
    return sleeps if math.isinf(sleeps) and not summary.loops else min(sleeps, summary.seconds)


def _only_sleeps(summary: CommandSummary, loop: Loop) -> bool:
    """Whether a loop goes round a known number of times, and nothing but sleeping bounds its time."""
    return (
        loop.keyword == "for"
        and loop.count is not None
        and not any(
            command.conditional or command.name in _LEAVING or (command.timeout and command.name != "sleep")
            for command in summary.commands
        )
    )


def _duration(arguments: tuple[str, ...]) -> float:
    """What `sleep 1m 30s` or `sleep infinity` comes to; 0 where it isn't known."""
    if arguments[:1] in (("infinity",), ("inf",)):
        return math.inf
    return sum(seconds(argument) or 0.0 for argument in arguments)


RULE = rule(__name__, check, needs=(Need.LIFECYCLE,))
