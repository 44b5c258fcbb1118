"""What a pod waits for before it counts as started or ready: hosts in probes and init containers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from policies.commands import SHELLS, CommandSummary, Host, Reach
from policies.containers.commands import container_command, exec_command
from policies.core.finding import Certainty
from policies.core.services import OwnService
from policies.core.target import PodTemplate
from policies.kube.json import strings, text
from policies.kube.pods import Container

_FAILS: Final = re.compile(r"\|\|\s*(?:exit\s+[1-9]\d*|return\s+[1-9]\d*|false)\b")
_CONDITION: Final = re.compile(r"\|\||\b(?:if|case|true|except)\b|\bexit\s+0\b")
_TIMEOUT: Final = re.compile(r"\btimeout\b")
_LOOP: Final = re.compile(r"\b(?:until|while)\b")
_SET: Final = re.compile(r"\bset\s+-(\w*)")


@dataclass(frozen=True, slots=True)
class Wait:
    """A host that a container must reach before it counts as started or ready."""

    host: Host
    path: str
    certainty: Certainty
    """UNDECIDED where the script may go on without it."""
    script: str

    def for_service(self, service: OwnService) -> bool:
        """Whether the wait can't end before the Service has a ready pod: a name resolves at once unless the
        Service is headless."""
        return service.headless or not self.host.name_lookup

    def certainty_of(self, other: Certainty) -> Certainty:
        return other if self.certainty is Certainty.CERTAIN else self.certainty


def probe_waits(template: PodTemplate, container: Container) -> Iterator[tuple[str, Wait]]:
    """(what it is called, wait) of each host that the readiness and startup probes must reach."""
    for field, called in (("readinessProbe", "readiness"), ("startupProbe", "startup")):
        for handler in ("httpGet", "tcpSocket"):
            name = text(container.spec, field, handler, "host")
            if name:
                host = Host(name.lower(), Reach.EXTERNAL, handler)
                yield (
                    called,
                    Wait(host, template.at(container, field, handler, "host"), Certainty.CERTAIN, ""),
                )
        summary = exec_command(template, container, field)
        script = "\n".join(strings(container.spec, field, "exec", "command"))
        certainty = Certainty.UNDECIDED if _is_conditional(script) else Certainty.CERTAIN
        for host in dict.fromkeys(summary.hosts):
            yield called, Wait(host, template.at(container, field, "exec.command"), certainty, script)


def init_waits(template: PodTemplate, container: Container) -> list[Wait]:
    """Each host that an init container polls until it answers."""
    return template.cache.once_for(container, _init_waits, template, container)


def _init_waits(template: PodTemplate, container: Container) -> list[Wait]:
    summary = container_command(template, container)
    if not summary.hosts:
        return []
    script = "\n".join(container.argv)
    polling = _Polling(summary, script)
    return [
        Wait(host, template.command_path(container), certainty, script)
        for host in dict.fromkeys(summary.hosts)
        if (certainty := polling.certainty(host))
    ]


class _Polling:
    """What a script does about the hosts that it asks: read once, however many they are."""

    def __init__(self, summary: CommandSummary, script: str) -> None:
        steps = [command for command in summary.commands if command.name not in SHELLS]
        self._looped = frozenset(host for loop in summary.loops for host in loop.hosts)
        self._endlessly = frozenset(host for loop in summary.loops if not loop.bounded for host in loop.hosts)
        self._last = frozenset(steps[-1].hosts) if steps else frozenset()
        self._single = len(steps) == 1
        self._fails = any(
            command.name == "exit" and command.argv[1:] != ("0",) for command in summary.commands
        )
        self._conditional = _is_conditional(script)
        self._conditional_before = _is_conditional(_LOOP.split(script, maxsplit=1)[0])
        self._limited = _TIMEOUT.search(script) is not None
        self._stops = _stops_at_errors(script)

    def certainty(self, host: Host) -> Certainty | None:
        """How sure it is that the script goes no further before the host answers; None: it goes on."""
        if host in self._endlessly:
            return Certainty.UNDECIDED if self._conditional_before else Certainty.CERTAIN
        if host in self._looped:
            if self._limited and not self._conditional:
                return Certainty.CERTAIN  # it gives up with an error, and kubelet runs it again
            return Certainty.UNDECIDED if self._fails else None
        if self._single and not self._conditional:
            return Certainty.CERTAIN  # it fails, and kubelet runs it again
        return Certainty.UNDECIDED if host in self._last or self._stops else None


def _stops_at_errors(script: str) -> bool:
    """Whether what fails may end a script: `&&`, `set -e`, or a word of options as in `sh -ec`."""
    return (
        "&&" in script
        or any("e" in options[1] for options in _SET.finditer(script))
        or any(_is_errexit(word) for word in script.split("\n"))
    )


def _is_errexit(word: str) -> bool:
    letters = word[1:]
    return word[:1] == "-" and "e" in letters and letters.replace("_", "e").isalnum()


def _is_conditional(script: str) -> bool:
    """Whether a script may go on, or succeed, although a check in it failed."""
    return _CONDITION.search(_FAILS.sub("", script)) is not None
