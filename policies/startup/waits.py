"""What a pod waits for before it counts as started or ready: hosts in probes and init containers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from policies.commands import CommandSummary, Host, How, Reach
from policies.containers.commands import container_command, exec_command
from policies.core.finding import Certainty
from policies.core.services import OwnService
from policies.core.target import PodTemplate
from policies.kube.json import strings, text
from policies.kube.pods import Container

_SHELLS: Final = frozenset({"sh", "bash", "ash", "dash", "busybox"})
_FAILS: Final = re.compile(r"\|\|\s*(?:exit\s+[1-9]\d*|return\s+[1-9]\d*|false)\b")
_CONDITION: Final = re.compile(r"\|\||\b(?:if|case|true|except)\b|\bexit\s+0\b")
_TIMEOUT: Final = re.compile(r"\btimeout\b")
_LOOP: Final = re.compile(r"\b(?:until|while)\b")
_ERREXIT: Final = re.compile(r"\bset\s+-\w*e|&&|^-\w*e\w*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Wait:
    """A host that a container must reach before it counts as started or ready."""

    host: Host
    path: str
    certainty: Certainty
    """UNDECIDED where the script may go on without it."""
    script: str

    def for_service(self, service: OwnService) -> bool:
        """Whether the wait can't end before the Service has a ready pod: a name alone resolves
        at once unless the Service is headless."""
        return service.headless or not self.host.name_lookup

    def certainty_of(self, other: Certainty) -> Certainty:
        return other if self.certainty is Certainty.SURE else self.certainty


def probe_waits(template: PodTemplate, container: Container) -> Iterator[tuple[str, Wait]]:
    """(what it is called, wait) of each host that the readiness and startup probes must reach."""
    for field, called in (("readinessProbe", "readiness"), ("startupProbe", "startup")):
        for handler in ("httpGet", "tcpSocket"):
            name = text(container.spec, field, handler, "host")
            if name:
                host = Host(name.lower(), Reach.EXTERNAL, How.ARGUMENT, handler)
                yield called, Wait(host, template.at(container, field, handler, "host"), Certainty.SURE, "")
        summary = exec_command(template, container, field)
        script = "\n".join(strings(container.spec, field, "exec", "command"))
        certainty = Certainty.UNDECIDED if _is_conditional(script) else Certainty.SURE
        for host in summary.hosts:
            yield called, Wait(host, template.at(container, field, "exec.command"), certainty, script)


def init_waits(template: PodTemplate, container: Container) -> Iterator[Wait]:
    """Each host that an init container polls until it answers."""
    summary = container_command(template, container)
    if not summary.hosts:
        return
    field = "command" if strings(container.spec, "command") else "args"
    script = "\n".join((*strings(container.spec, "command"), *strings(container.spec, "args")))
    for host in summary.hosts:
        certainty = _polls(summary, host, script)
        if certainty:
            yield Wait(host, template.at(container, field), certainty, script)


def _polls(summary: CommandSummary, host: Host, script: str) -> Certainty | None:
    """How sure it is that a script goes no further before the host answers; None: it goes on."""
    loops = [loop for loop in summary.loops if host in loop.hosts]
    if any(not loop.bounded for loop in loops):
        before = _LOOP.split(script, maxsplit=1)[0]
        return Certainty.UNDECIDED if _is_conditional(before) else Certainty.SURE
    if loops and _TIMEOUT.search(script) and not _is_conditional(script):
        return Certainty.SURE  # it gives up with an error, and kubelet runs it again
    if loops:
        fails = any(command.name == "exit" and command.argv[1:] != ("0",) for command in summary.commands)
        return Certainty.UNDECIDED if fails else None
    steps = [command for command in summary.commands if command.name not in _SHELLS]
    if len(steps) == 1 and not _is_conditional(script):
        return Certainty.SURE  # it fails, and kubelet runs it again
    is_last = bool(steps) and host in steps[-1].hosts
    return Certainty.UNDECIDED if is_last or _ERREXIT.search(script) else None


def _is_conditional(script: str) -> bool:
    """Whether a script may go on, or succeed, although a check in it failed."""
    return _CONDITION.search(_FAILS.sub("", script)) is not None
