"""The probes of a pod template, with the API server's defaults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from policies.commands import CommandSummary
from policies.containers.commands import exec_command
from policies.core.target import PodTemplate, Target
from policies.kube import probe_defaults
from policies.kube.json import Json, dig, mapping, maps, text
from policies.kube.pods import Container, Role, port_number

LIVENESS: Final = "livenessProbe"
READINESS: Final = "readinessProbe"
STARTUP: Final = "startupProbe"
_NAMES: Final = {LIVENESS: "liveness", READINESS: "readiness", STARTUP: "startup"}


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe of one container, with times in seconds."""

    template: PodTemplate
    container: Container
    field: str
    spec: Json

    @property
    def name(self) -> str:
        """Its name in messages, such as `liveness probe of container api`."""
        return f"{_NAMES[self.field]} probe of container {self.container.name}"

    def at(self, *fields: str) -> str:
        return self.template.at(self.container, self.field, *fields)

    @property
    def delay(self) -> int:
        return probe_defaults.initial_delay(self.spec)

    @property
    def period(self) -> int:
        return probe_defaults.period(self.spec)

    @property
    def timeout(self) -> int:
        return probe_defaults.timeout(self.spec)

    @property
    def failures(self) -> int:
        return probe_defaults.failures(self.spec)

    @property
    def give_up(self) -> int:
        """Seconds of failures after which kubelet acts."""
        return probe_defaults.give_up(self.spec)

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

    def has_same_check_as(self, other: Probe) -> bool:
        """Whether two probes of one container make the same check."""
        check = self._check()
        return check is not None and check == other._check()

    def _check(self) -> object:
        """The handler with its defaults; None for an unknown one."""
        for handler in ("httpGet", "tcpSocket", "grpc"):
            action = mapping(self.spec, handler)
            if action:
                port = port_number(self.container.spec, action.get("port")) or action.get("port")
                path = action.get("path") or ("/" if handler == "httpGet" else "")
                scheme = action.get("scheme") or "HTTP"
                return handler, action.get("host") or "", port, path, scheme, action.get("service") or ""
        return dig(self.spec, "exec", "command")


def _user_written(template: PodTemplate) -> frozenset[tuple[str, str, str]]:
    """The list, container and field of each probe before mutation."""
    spec = mapping(template.unprojected, "spec")
    return frozenset(
        (place, text(each, "name"), field)
        for place in ("containers", "initContainers")
        for each in maps(spec, place)
        for field in _NAMES
        if each.get(field)
    )


def probes(target: Target, *fields: str) -> Iterator[Probe]:
    """The probes at the given fields of all main containers and native sidecars."""
    for template in target.templates:
        for container in template.containers(Role.MAIN, Role.SIDECAR):
            for field in fields:
                if probe := probe_of(template, container, field):
                    yield probe


def probe_of(template: PodTemplate, container: Container, field: str) -> Probe | None:
    """The container's probe at a field; None without one."""
    spec = container.spec.get(field)
    return Probe(template, container, field, spec) if isinstance(spec, dict) and spec else None


def liveness_and_readiness(target: Target) -> Iterator[tuple[Probe, Probe]]:
    """The liveness and readiness probes of containers with both, except in pods that run to completion, which
    get no traffic."""
    for liveness in probes(target, LIVENESS):
        if liveness.template.completes:
            continue
        readiness = probe_of(liveness.template, liveness.container, READINESS)
        if readiness is not None:
            yield liveness, readiness
