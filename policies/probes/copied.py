"""Whether a check that a user wrote is known to work, so that it may be copied into another probe.

The kubelet ignores a probe that it cannot send: an unknown port name, or a command whose program the image
lacks. Liveness then does nothing, but a startupProbe with the same check never succeeds, and the pod never
becomes ready. A check of another host may need this pod to be ready first.
Source: https://github.com/kubernetes/kubernetes/blob/v1.36.0/pkg/kubelet/prober/worker.go
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Final

from policies.commands import Reach
from policies.containers.commands import command_without_pod, handler_command
from policies.core.facts import Facts
from policies.core.groups import Waits
from policies.core.pod_view import PodView
from policies.kube.json import Json, mapping, strings, text
from policies.kube.pods import Container, Role
from policies.probes.health import handler_of, known_health, right_port
from policies.probes.heavy_commands import heavy_work
from policies.probes.liveness_program import watched_start
from policies.probes.preset import dependency_of
from policies.probes.probe import is_sendable
from policies.probes.serving import (
    is_kuberay_container,
    istio_refuses_probes,
    recognised,
    waits_for,
)
from policies.probes.startup_budget import expected_start

_USUAL_PATH: Final = frozenset({"/bin", "/usr/bin", "/usr/local/bin"})
"""Directories that are in the PATH of every usual image."""


def startup_check(pod: PodView, container: Container, probe: Any, facts: Facts) -> tuple[Json, str]:
    """The handler of a startupProbe before a livenessProbe, and why it is not that probe's own.

    The handler is empty if neither the written check nor the recognised server's endpoint is known to work.
    """
    why_not = why_not_copied(container, probe, facts)
    if not why_not:
        return handler_of(probe), ""
    if istio_refuses_probes(pod):
        return {}, why_not
    health = known_health(pod, container, facts)
    return (health.live if health else None) or {}, why_not


def why_not_copied(container: Container, probe: Any, facts: Facts) -> str:
    """Why a check is not known to work, as the end of a sentence; empty if it is."""
    for handler in ("httpGet", "tcpSocket"):
        action = mapping(probe, handler)
        if action and not is_sendable(container, probe):
            return f"its port {text(action, 'port')} is a name that no port of the container has"
        if action.get("host"):
            return "it checks another host, which may wait for this pod"
    server, asked = recognised(container, facts), text(mapping(probe, "httpGet"), "path").partition("?")[0]
    others = dependency_of(server.preset, asked) if server is not None and asked else None
    if server is not None and others is not None and others.costs:
        return f"{asked} of {server.name} checks {others.of}"
    command = strings(probe, "exec", "command")
    if not command:
        return ""
    if program := doubtful_program(container, probe, facts):
        return f"the image may lack {program}, and a startupProbe would then never succeed"
    summary = handler_command(container, command)
    if not summary.complete or any(host.reach is not Reach.LOCAL for host in summary.hosts):
        return "its command checks another host, which may wait for this pod"
    if heavy := heavy_work(summary):
        return f"it {heavy[0]}, which a start would do again and again"
    return ""


def doubtful_program(container: Container, probe: Any, facts: Facts) -> str:
    """The program of a check that the image may lack; empty if it certainly has it, or without a command."""
    program = next(iter(strings(probe, "exec", "command")), "")
    return program if program and program not in _known_programs(container, facts) else ""


def _known_programs(container: Container, facts: Facts) -> frozenset[str]:
    """The programs that the image contains, because the container needs them to start or to become ready, or
    because the preset of the server's own image lists them."""
    server = recognised(container, facts)
    found = {*server.preset.programs} if server is not None and server.own_image else set()
    needed = [strings(container.spec, "command")]
    needed.append(strings(container.spec, "readinessProbe", "exec", "command"))
    needed.append(strings(container.spec, "lifecycle", "postStart", "exec", "command"))
    started = command_without_pod(container)
    if strings(container.spec, "command") and started.complete:
        needed += [list(each.argv) for each in started.commands if not each.conditional]
    found.update(words[0] for words in needed if words)
    # A program in a usual directory is also found by its name.
    places = map(PurePosixPath, found)
    return frozenset(found | {place.name for place in places if str(place.parent) in _USUAL_PATH})


def killed_start(pod: PodView, container: Container, facts: Facts) -> int | None:
    """Seconds of the expected start that the container's livenessProbe would end; None if it would not, or if
    a startupProbe would do harm."""
    live, timing = container.spec.get("livenessProbe"), container.typed.liveness_probe
    if timing is None or container.typed.startup_probe is not None:
        return None
    if not handler_of(live) or watched_start(live):
        return None
    expected = expected_start(pod, container, facts)
    if expected is None or timing.startup_deadline >= expected:
        return None
    if container.role is not Role.MAIN or is_kuberay_container(pod, container):
        return None
    if waits_for(pod, container, facts) is not Waits.NO:
        return None
    if right_port(pod, container, live, facts):  # the probe never passes, and would block the other probes
        return None
    return expected
