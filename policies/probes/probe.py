"""The probes of a pod template, each with its place and its numbers as the API server would fill them in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from policies.commands import CommandSummary
from policies.containers.commands import exec_command
from policies.core.target import PodTemplate, Target
from policies.kube import probe_timing
from policies.kube.json import Json, dig, mapping, maps, text
from policies.kube.pods import Container, Role, port_number

LIVENESS: Final = "livenessProbe"
READINESS: Final = "readinessProbe"
STARTUP: Final = "startupProbe"
OF_FILES: Final = frozenset({"test", "[", "[[", "cat", "ls", "stat", "true", "pgrep", "pidof", "kill"})
"""Programs of exec probes that look at a file or a process, and so answer however busy a server is."""
_CALLED: Final = {LIVENESS: "liveness", READINESS: "readiness", STARTUP: "startup"}


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe of one container. Numbers are seconds; unset ones have the API's defaults."""

    template: PodTemplate
    container: Container
    field: str
    spec: Json

    @property
    def name(self) -> str:
        """What a message calls it, such as `liveness probe of container api`."""
        return f"{_CALLED[self.field]} probe of container {self.container.name}"

    def at(self, *fields: str) -> str:
        return self.template.at(self.container, self.field, *fields)

    @property
    def delay(self) -> int:
        return probe_timing.initial_delay(self.spec)

    @property
    def period(self) -> int:
        return probe_timing.period(self.spec)

    @property
    def timeout(self) -> int:
        return probe_timing.timeout(self.spec)

    @property
    def failures(self) -> int:
        return probe_timing.failures(self.spec)

    @property
    def give_up(self) -> int:
        """Seconds of failing after which kubelet draws its conclusion."""
        return probe_timing.give_up(self.spec)

    @property
    def command(self) -> CommandSummary:
        """The summary of its exec handler's command; empty if it has none."""
        return exec_command(self.template, self.container, self.field)

    def asks_as(self, other: Probe) -> bool:
        """Whether two probes of one container make the same check."""
        mine, others = check_of(self), check_of(other)
        return mine is not None and mine == others


def probes(target: Target, *fields: str) -> Iterator[Probe]:
    """The probes at the given fields of every container that may have one."""
    for template in target.templates:
        for container in template.containers(Role.MAIN, Role.SIDECAR):
            for field in fields:
                if probe := probe_of(template, container, field):
                    yield probe


def probe_of(template: PodTemplate, container: Container, field: str) -> Probe | None:
    """The container's probe at a field; None where there is none."""
    spec = container.spec.get(field)
    return Probe(template, container, field, spec) if isinstance(spec, dict) and spec else None


def is_written(target: Target, probe: Probe) -> bool:
    """Whether the probe is in the object itself: the others were added by the pod-level policies.

    In a Pod both look the same: its mutations have run before.
    """
    template = probe.template
    if template.workload is None or template.container_path:
        return True
    written = template.cache.once(_written, template)
    return (probe.container.list, probe.container.name, probe.field) in written


def _written(template: PodTemplate) -> frozenset[tuple[str, str, str]]:
    """The probes of the pod as the object has it: list, container and field."""
    spec = mapping(template.unprojected, "spec")
    return frozenset(
        (place, text(each, "name"), field)
        for place in ("containers", "initContainers")
        for each in maps(spec, place)
        for field in _CALLED
        if each.get(field)
    )


def check_of(probe: Probe) -> object:
    """What a probe asks, in a form that can be compared; None if it asks nothing known."""
    for handler in ("httpGet", "tcpSocket", "grpc"):
        action = mapping(probe.spec, handler)
        if action:
            port = port_number(probe.container.spec, action.get("port")) or action.get("port")
            path = action.get("path") or ("/" if handler == "httpGet" else "")
            scheme = action.get("scheme") or "HTTP"
            return handler, action.get("host") or "", port, path, scheme, action.get("service") or ""
    return dig(probe.spec, "exec", "command")


def liveness_and_readiness(target: Target) -> Iterator[tuple[Probe, Probe]]:
    """The liveness and readiness probes of the containers that have both; a pod that runs to completion
    has no traffic to be taken off it."""
    for liveness in probes(target, LIVENESS):
        if liveness.template.completes:
            continue
        readiness = probe_of(liveness.template, liveness.container, READINESS)
        if readiness is not None:
            yield liveness, readiness
