"""How servers end: for how long they finish requests after SIGTERM, and how long their preStop hooks sleep.

Law: a number is written by a user or in the server's code; an unknown one is None.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from policies.commands import CommandSummary, Loop, seconds
from policies.containers.commands import exec_command
from policies.containers.programs import option, programs
from policies.core.facts import Facts
from policies.core.target import PodTemplate
from policies.kube.images import repository_and_tag
from policies.kube.json import integer
from policies.kube.pods import Container
from policies.probes.recognition import version_of
from policies.probes.serving import recognised

WEB_SERVERS: Final = {"gunicorn": "--graceful-timeout", "uvicorn": "--timeout-graceful-shutdown"}
"""Flags of web servers that no preset is about. gunicorn reads the same from files, so its default is not
known: https://github.com/benoitc/gunicorn/blob/23.0.0/gunicorn/config.py,
https://github.com/encode/uvicorn/blob/0.34.0/uvicorn/main.py"""
_LEAVING: Final = frozenset({"break", "exit", "return", "kill"})


class Drain(NamedTuple):
    """For how many seconds a server finishes requests after SIGTERM, at most."""

    seconds: int
    written: str
    """The flag or variable that sets it; empty where it is the server's default."""


def drain_of(container: Container, facts: Facts) -> Drain | None:
    """The drain of the server in a container; None where it is not known, or has no limit."""
    server = recognised(container, facts)
    if server is None:
        return _web_server(container)
    drain = server.preset.drain
    if drain is None:
        return None
    told = server.configured(drain.flags, drain.env)
    if told is not None:
        number = _number(told)
        names = (*drain.flags, *drain.env)
        written = next((name for name in names if server.has_option(name) or server.has_variable(name)), "")
        return None if number is None else Drain(number, written)
    if drain.seconds is None or not server.own_image or server.may_have_option(*drain.flags):
        return None
    version = version_of(repository_and_tag(container.image)[1])
    if not version or version < version_of(drain.since or "0"):
        return None
    if server.has_env_from or any(word.startswith("$") for word in server.argv[1:]):
        return None
    return Drain(drain.seconds, "")


def _web_server(container: Container) -> Drain | None:
    for words in programs(container):
        if flag := WEB_SERVERS.get(words[0]):
            number = _number(option(words, flag) or "")
            return None if number is None else Drain(number, flag)
    return None


def _number(told: str) -> int | None:
    return int(told) if told.isascii() and told.isdigit() and len(told) < 7 else None


# --- preStop hooks -------------------------------------------------------------------------------


def pre_stop_sleep(template: PodTemplate, container: Container) -> float:
    """Seconds that a container's preStop hook sleeps for certain; 0 where it doesn't."""
    native = integer(container.spec, "lifecycle", "preStop", "sleep", "seconds", default=0)
    return native or _slept(exec_command(template, container, "lifecycle", "preStop"))


def _slept(summary: CommandSummary) -> float:
    """The sleeps of a script, one round of each loop that the script may leave when it likes.

    The summary's own bound includes branches that exclude each other, and an enclosing `timeout`.
    """
    if summary.loops and all(_only_sleeps(summary, loop) for loop in summary.loops):
        return summary.seconds
    sleeps = sum(_duration(command.argv[1:]) for command in summary.commands if command.name == "sleep")
    return sleeps if math.isinf(sleeps) and not summary.loops else min(sleeps, summary.seconds)


def _only_sleeps(summary: CommandSummary, loop: Loop) -> bool:
    """Whether a loop goes round a known number of times, and only sleeping bounds its time."""
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
