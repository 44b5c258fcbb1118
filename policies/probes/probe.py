"""The probes of a pod template, each with its container. `kube.objects.pods.Probe` has the API server's
defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Final

from msgspec import Struct

from policies.commands import CommandSummary
from policies.containers.commands import exec_command
from policies.core.pod_view import PodView
from policies.core.target import PodTemplate, Target
from policies.kube.json import Json, mapping
from policies.kube.objects.pods import ContainerSpec, Probe
from policies.kube.pods import Container, Role, port_number

LIVENESS: Final = "livenessProbe"
READINESS: Final = "readinessProbe"
STARTUP: Final = "startupProbe"
_MINUTES: Final = 300
LENIENT: Final = 60
"""Seconds of failures. A burst of requests does not last that long."""
_NAMES: Final = {LIVENESS: "liveness", READINESS: "readiness", STARTUP: "startup"}
_FIELDS: Final[Mapping[str, Callable[[ContainerSpec], Probe | None]]] = {
    LIVENESS: attrgetter("liveness_probe"),
    READINESS: attrgetter("readiness_probe"),
    STARTUP: attrgetter("startup_probe"),
}


class ContainerProbe(Struct, frozen=True):
    """One probe of one container, with times in seconds."""

    template: PodTemplate
    container: Container
    field: str
    spec: Json
    """As it is written."""
    typed: Probe
    is_sent: bool
    """Whether the kubelet can resolve the port. An operator may add the named port."""

    @property
    def name(self) -> str:
        """Its name in messages, such as `liveness probe of container api`."""
        return f"{self.which} probe of container {self.container.name}"

    @property
    def which(self) -> str:
        """A word for it, such as `liveness`."""
        return _NAMES[self.field]

    def at(self, *fields: str) -> str:
        return self.template.at(self.container, self.field, *fields)

    @property
    def delay(self) -> int:
        return self.typed.initial_delay

    @property
    def period(self) -> int:
        return self.typed.period

    @property
    def timeout(self) -> int:
        return self.typed.timeout

    @property
    def failures(self) -> int:
        return self.typed.failures

    @property
    def give_up(self) -> int:
        """Seconds of failures after which the kubelet acts."""
        return self.typed.give_up

    @property
    def command(self) -> CommandSummary:
        """The summary of its exec handler's command; empty if it has none."""
        return exec_command(self.template, self.container, self.field)

    @property
    def is_user_written(self) -> bool:
        """Whether the probe is in the user's workload, not added by this webhook.

        True in a Pod, where the two cannot be distinguished.
        """
        template = self.template
        if template.workload is None or template.container_path:
            return True
        written = template.cache.once(_user_written, template)
        return (self.container.list, self.container.name, self.field) in written

    @property
    def starts_late(self) -> bool:
        """Whether it waits for minutes instead of for a startupProbe. In a sidecar, a startupProbe would
        delay the containers after it."""
        guarded = self.container.typed.startup_probe is not None
        return self.delay >= _MINUTES and not guarded and self.container.role is not Role.SIDECAR

    def has_same_check_as(self, other: ContainerProbe) -> bool:
        """Whether two probes of one container make the same check."""
        check = self._check()
        return check is not None and check == other._check()

    def _check(self) -> object:
        """The handler with its defaults; None for an unknown one."""
        probe, port = self.typed, partial(port_number, self.container.typed)
        if (get := probe.http_get) is not None:
            return get.host, port(get.port) or get.port, get.path or "/", get.scheme or "HTTP"
        if (socket := probe.tcp_socket) is not None:
            return socket.host, port(socket.port) or socket.port
        return probe.grpc or (None if probe.exec is None else probe.exec.command)


def is_sendable(container: Container, probe: Any) -> bool:
    """Whether the kubelet can resolve the port that a probe asks."""
    actions = (mapping(probe, handler) for handler in ("httpGet", "tcpSocket"))
    return all(port_number(container.typed, action.get("port")) is not None for action in actions if action)


def _user_written(template: PodTemplate) -> frozenset[tuple[str, str, str]]:
    """The list, container and field of each probe before mutation."""
    written = template.view if template.unprojected is template.pod else PodView(template.unprojected)
    return frozenset(
        (each.list, each.name, field)
        for each in written.containers
        for field in _NAMES
        if each.spec.get(field)
    )


def probes(target: Target, *fields: str) -> Iterator[ContainerProbe]:
    """The probes at the given fields of all main containers and native sidecars that the kubelet sends."""
    return (probe for probe in written_probes(target, *fields) if probe.is_sent)


def written_probes(target: Target, *fields: str) -> Iterator[ContainerProbe]:
    """Those probes, and others that the kubelet ignores, because it does not know their port."""
    for template in target.templates:
        for container, written in template.cache.once(_written, template):
            for field in fields:
                if field in written:
                    yield ContainerProbe(template, container, field, *written[field])


def _written(template: PodTemplate) -> tuple[tuple[Container, dict[str, _WrittenProbe]], ...]:
    """Each main container and native sidecar with its probes."""
    return tuple(
        (each, {field: probe for field in _NAMES if (probe := _probe(template, each, field)) is not None})
        for each in template.containers(Role.MAIN, Role.SIDECAR)
    )


_WrittenProbe = tuple[Json, Probe, bool]
"""`spec`, `typed` and `is_sent` of a ContainerProbe. Without its template, which keeps them: a cycle would be
left to the garbage collector."""


def _probe(template: PodTemplate, container: Container, field: str) -> _WrittenProbe | None:
    spec, typed = container.spec.get(field), _FIELDS[field](container.typed)
    if not spec or typed is None:
        return None
    return spec, typed, not template.is_as_written or is_sendable(container, spec)


def probe_of(template: PodTemplate, container: Container, field: str) -> ContainerProbe | None:
    """The container's probe at a field; None without one."""
    found = _probe(template, container, field)
    return None if found is None else ContainerProbe(template, container, field, *found)


def liveness_and_readiness(target: Target) -> Iterator[tuple[ContainerProbe, ContainerProbe]]:
    """The liveness and readiness probes of containers with both, except in pods that run to completion, which
    get no traffic."""
    for liveness in probes(target, LIVENESS):
        readiness = readiness_next_to(liveness)
        if readiness is not None:
            yield liveness, readiness


def readiness_next_to(liveness: ContainerProbe) -> ContainerProbe | None:
    """The readiness probe of a liveness probe's container; None without one that the kubelet sends, or if no
    traffic depends on it."""
    if liveness.template.completes:
        return None
    readiness = probe_of(liveness.template, liveness.container, READINESS)
    return readiness if readiness is not None and readiness.is_sent else None
