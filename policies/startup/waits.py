"""The hosts that a pod waits for before it is started or ready: those of probes and init containers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from policies.commands import SHELLS, CommandSummary, Host, Reach
from policies.containers.commands import container_command, exec_command
from policies.core.facts import Facts
from policies.core.finding import Certainty, Finding
from policies.core.resources import Resource
from policies.core.services import OwnService, own_service
from policies.core.target import PodTemplate, Target
from policies.kube.pods import Container

_FAILS: Final = re.compile(r"\|\|\s*(?:exit\s+[1-9]\d*|return\s+[1-9]\d*|false)\b")
_CONDITION: Final = re.compile(r"\|\||\b(?:if|case|true|except)\b|\bexit\s+0\b")
_TIMEOUT: Final = re.compile(r"\btimeout\b")
_LOOP: Final = re.compile(r"\b(?:until|while)\b")
_SET: Final = re.compile(r"\bset\s+-(\w*)")


class Wait(Struct, frozen=True):
    """A host that a container must reach before it is started or ready."""

    host: Host
    path: str
    certainty: Certainty
    """UNDECIDED if the script may continue without it."""
    script: str

    def for_service(self, service: OwnService) -> bool:
        """Whether the wait needs a ready pod of the Service: only the name of a headless Service does not
        resolve without one."""
        return service.headless or not self.host.name_lookup

    def certainty_of(self, other: Certainty) -> Certainty:
        return other if self.certainty is Certainty.CERTAIN else self.certainty


def probe_waits(template: PodTemplate, container: Container) -> Iterator[tuple[str, Wait]]:
    """The hosts that the readiness and startup probes must reach, each with the probe's name."""
    typed = container.typed
    for name, field, probe in (
        ("readiness", "readinessProbe", typed.readiness_probe),
        ("startup", "startupProbe", typed.startup_probe),
    ):
        if probe is None:
            continue
        for handler, action in (("httpGet", probe.http_get), ("tcpSocket", probe.tcp_socket)):
            if action is not None and action.host:
                host = Host(action.host.lower(), Reach.EXTERNAL, handler)
                path = template.at(container, field, handler, "host")
                yield name, Wait(host, path, Certainty.CERTAIN, "")
        if probe.exec is None:
            continue
        summary = exec_command(template, container, field)
        script = "\n".join(probe.exec.command)
        certainty = Certainty.UNDECIDED if _is_conditional(script) else Certainty.CERTAIN
        for host in dict.fromkeys(summary.hosts):
            yield name, Wait(host, template.at(container, field, "exec.command"), certainty, script)


def init_waits(template: PodTemplate, container: Container) -> list[Wait]:
    """The hosts that an init container polls until they answer."""
    return template.cache.once_for(container, _init_waits, template, container)


def _init_waits(template: PodTemplate, container: Container) -> list[Wait]:
    summary = container_command(template, container)
    if not summary.hosts:
        return []
    script = "\n".join(container.typed.argv)
    polling = _Polling(summary, script)
    return [
        Wait(host, template.command_path(container), certainty, script)
        for host in dict.fromkeys(summary.hosts)
        if (certainty := polling.certainty(host))
    ]


class _Polling:
    """How a script polls its hosts."""

    def __init__(self, summary: CommandSummary, script: str) -> None:
        steps = [command for command in summary.commands if command.name not in SHELLS]
        self._looped = frozenset(host for loop in summary.loops for host in loop.hosts)
        self._looped_endlessly = frozenset(
            host for loop in summary.loops if not loop.bounded for host in loop.hosts
        )
        self._last = frozenset(steps[-1].hosts) if steps else frozenset()
        self._single = len(steps) == 1
        self._fails = any(
            command.name == "exit" and command.argv[1:] != ("0",) for command in summary.commands
        )
        self._conditional = _is_conditional(script)
        self._conditional_before = _is_conditional(_LOOP.split(script, maxsplit=1)[0])
        self._uncertain = may_end_otherwise(summary)
        self._limited = _TIMEOUT.search(script) is not None
        self._stops = _stops_at_errors(script)

    def certainty(self, host: Host) -> Certainty | None:
        """How certain it is that the script waits until the host answers; None if it does not wait."""
        if host in self._looped_endlessly:
            uncertain = self._conditional_before or host in self._uncertain
            return Certainty.UNDECIDED if uncertain else Certainty.CERTAIN
        if host in self._looped:
            if self._limited and not self._conditional:
                return Certainty.CERTAIN  # it ends with an error, and the kubelet runs it again
            return Certainty.UNDECIDED if self._fails else None
        if self._single and not self._conditional:
            return Certainty.CERTAIN  # it fails, and the kubelet runs it again
        return Certainty.UNDECIDED if host in self._last or self._stops else None


def may_end_otherwise(summary: CommandSummary) -> frozenset[Host]:
    """The hosts of loops that run only in some cases or in the background, or whose condition has an
    alternative: `until nc db 1 || [ -f /skip ]`."""
    if any(loop.alternative for loop in summary.loops):
        return frozenset(summary.hosts)
    waiting = {host for loop in summary.loops if not loop.background for host in loop.hosts}
    always = {host for command in summary.commands if not command.conditional for host in command.hosts}
    return frozenset(host for host in summary.hosts if host not in waiting or host not in always)


def _stops_at_errors(script: str) -> bool:
    """Whether an error may end a script: `&&`, `set -e`, or options as in `sh -ec`."""
    return (
        "&&" in script
        or any("e" in options[1] for options in _SET.finditer(script))
        or any(_is_errexit(word) for word in script.split("\n"))
    )


def _is_errexit(word: str) -> bool:
    letters = word[1:]
    return word[:1] == "-" and "e" in letters and letters.replace("_", "e").isalnum()


def _is_conditional(script: str) -> bool:
    """Whether a script may continue or succeed after a failed check."""
    return _CONDITION.search(_FAILS.sub("", script)) is not None


def own_service_finding(
    target: Target, template: PodTemplate, container: Container, facts: Facts
) -> Finding | None:
    """The finding about an init container that waits for the Service of its own pod."""
    if not facts.listing(Resource.SERVICES):
        return None
    for wait in init_waits(template, container):
        service = own_service(wait.host.name, target, template, container, facts)
        if service and wait.for_service(service):
            return Finding(
                wait.path,
                f"Init container {container.name} waits for Service {service.name}, whose only endpoints "
                "are this workload's own pods. No pod can become ready first.",
                "Remove the wait, and let the main container look for its peers once it runs.",
                wait.certainty_of(service.certainty),
            )
    return None
