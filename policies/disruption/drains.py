"""The end of servers: how long they finish requests after SIGTERM, and how long their preStop hooks sleep.

Law: a user or the server's code sets each number; an unknown number is None.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from policies.commands import SHELLS, CommandSummary, ScriptLoop, runs_forever
from policies.containers.commands import exec_command
from policies.core.facts import Facts
from policies.core.pod_view import PodView
from policies.core.target import PodTemplate
from policies.kube.pods import Container
from policies.kube.quantities import whole_number
from policies.probes.recognition import release
from policies.probes.serving import recognised

_EXITS: Final = frozenset({"break", "exit", "return", "kill"})


class DrainTime(NamedTuple):
    """The maximum time for which a server finishes requests after SIGTERM."""

    seconds: int
    option: str
    """The flag or variable that sets it; empty for the server's default."""
    assumed: bool = False
    """Whether it is that of new versions, and the server's own version is unknown."""


def drain_of(container: Container, facts: Facts) -> DrainTime | None:
    """The drain of the server in a container; None if it is unknown or has no limit."""
    server = recognised(container, facts)
    drain = server.preset.drain if server else None
    if server is None or drain is None:
        return None
    value = server.configured(drain.flags, drain.env)
    if value is not None:
        names = (*drain.flags, *drain.env)
        name = next((each for each in names if server.has_option(each) or server.has_variable(each)), "")
        return _configured(value, name)
    known_image = server.own_image or server.version
    if drain.seconds is None or not known_image or server.may_have_option(*drain.flags):
        return None
    if drain.with_model and server.configured(server.preset.model_flags, server.preset.model_env) is None:
        return None
    if server.version and server.version < release(drain.since or "0"):
        return None
    if not server.version and drain.seconds:
        return None  # without a version, only the careful assumption counts: it aborts its requests
    if server.has_env_from or server.may_hold_options:
        return None
    return DrainTime(drain.seconds, "", assumed=not server.version)


def _configured(value: str, option: str) -> DrainTime | None:
    seconds = whole_number(value, 6)
    return None if seconds is None else DrainTime(seconds, option)


# --- preStop hooks -------------------------------------------------------------------------------


def pre_stop_sleep(template: PodTemplate, container: Container) -> float:
    """Seconds that a container's preStop hook certainly sleeps."""
    hook = container.typed.pre_stop
    if hook is None:
        return 0
    if hook.sleep is not None and hook.sleep.seconds:
        return hook.sleep.seconds
    return _slept(exec_command(template, container, "lifecycle", "preStop"))


def only_sleeps(template: PodTemplate, container: Container) -> bool:
    """Whether the user wrote a preStop hook that does nothing but sleep."""
    name = (container.list, container.name)
    written = PodView(template.unprojected).containers
    if not any((each.list, each.name) == name and each.typed.pre_stop is not None for each in written):
        return False
    hook = container.typed.pre_stop
    if hook is None or hook.exec is None:
        return hook is not None and hook.sleep is not None
    summary = exec_command(template, container, "lifecycle", "preStop")
    return not summary.loops and {each.name for each in summary.commands} - SHELLS == {"sleep"}


def _slept(summary: CommandSummary) -> float:
    """The sleeps of a script, with one round of each loop that it may leave early.

    The summary's `seconds` is an upper limit, which includes the time of an enclosing `timeout`.
    """
    if summary.loops and all(_only_sleeps(summary, loop) for loop in summary.loops):
        return summary.seconds
    sleeps = [each for each in summary.commands if each.name == "sleep" and not each.conditional]
    if any(runs_forever(command.argv) for command in sleeps):
        return summary.seconds if summary.loops else math.inf
    return min(sum(command.timeout or 0.0 for command in sleeps), summary.seconds)


def _only_sleeps(summary: CommandSummary, loop: ScriptLoop) -> bool:
    """Whether a loop has a known number of rounds, and only `sleep` takes time in it."""
    return (
        loop.keyword == "for"
        and loop.count is not None
        and not any(
            command.conditional or command.name in _EXITS or (command.timeout and command.name != "sleep")
            for command in summary.commands
        )
    )
