"""The containers of a pod, with their positions and roles."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

from policies.kube.cache import Cache, lazy
from policies.kube.json import Json, indexed_maps, maps, replaced, text
from policies.kube.objects.pods import ContainerSpec, Probe
from policies.kube.objects.reading import read
from policies.kube.quantities import whole_number


class Role(Enum):
    """The role of a container in its pod."""

    MAIN = "main"
    SIDECAR = "sidecar"
    """A native sidecar: an init container with `restartPolicy: Always`."""
    INIT = "init"


_RUNS: Final = ("name", "image", "command", "args", "env", "envFrom", "ports", "volumeMounts")
"""The fields that decide which programs run in a container, and on which ports they listen."""


class Container:
    """An immutable container with its position: `list` is `containers` or `initContainers`."""

    def __init__(self, spec: Json, place: str, index: int, role: Role) -> None:
        self.spec, self.list, self.index, self.role = spec, place, index, role
        self.name = text(spec, "name") or str(index)
        """Its name; its index where a kind, such as Knative's, gives it one later."""
        self.image = text(spec, "image")
        self.cache = Cache()
        """Values that depend only on its name, image, command, arguments, environment, ports and mounts."""

    @lazy
    def typed(self) -> ContainerSpec:
        """Its fields. Raises WrongTypeError; in a review the object is undecided then."""
        return read(self.spec, ContainerSpec)

    @property
    def path(self) -> str:
        """Its field path in its pod, by name: `spec.containers[api]`."""
        return f"spec.{self.list}[{self.name}]"

    @lazy
    def tcp_ports(self) -> dict[int, str]:
        """See `tcp_ports`."""
        return tcp_ports(self.typed)

    def with_spec(self, spec: Json) -> Container:
        """The container with another spec, and the same cache if the fields in `_RUNS` are the same
        objects."""
        other = Container(spec, self.list, self.index, self.role)
        before = self.spec
        for key in _RUNS:
            if spec.get(key) is not before.get(key):
                return other
        other.cache = self.cache
        return other


def tcp_ports(container: ContainerSpec) -> dict[int, str]:
    """The declared TCP ports in order, each with its name or an empty text."""
    return {
        port.container_port: port.name
        for port in container.ports
        if port.container_port is not None and port.protocol == "TCP"
    }


def port_number(container: ContainerSpec, port: object) -> int | None:
    """The number of a probe's or annotation's port: a number, its text, or the name of a declared port."""
    if isinstance(port, str):
        named = next((each.container_port for each in container.ports if each.name == port), None)
        port = whole_number(port, 5) if named is None else named
    return port if type(port) is int and 0 < port < 65536 else None


def probe_every(period: int, timeout: int, failures: int) -> Probe:
    """A probe without a handler, by its numbers in seconds and counts; `timed` adds them to a handler."""
    return Probe(period_seconds=period, timeout_seconds=timeout, failure_threshold=failures)


def timed(handler: Json, timing: Probe) -> Json:
    """A handler with the numbers of a probe, as JSON."""
    numbers = {
        "periodSeconds": timing.period,
        "timeoutSeconds": timing.timeout,
        "failureThreshold": timing.failures,
    }
    delay = {"initialDelaySeconds": timing.initial_delay} if timing.initial_delay else {}
    return {**handler, **numbers, **delay}


def containers(pod: Json, *roles: Role) -> Iterator[Container]:
    """The containers of a pod (a map with `spec`) with the given roles, or all; main containers first."""
    for spec, place, index, role in container_specs(pod):
        if not roles or role in roles:
            yield Container(spec, place, index, role)


def container_specs(pod: Json) -> Iterator[tuple[Json, str, int, Role]]:
    """The containers of a pod as JSON with list, index and role; main containers first."""
    for index, spec in indexed_maps(pod, "spec", "containers"):
        yield spec, "containers", index, Role.MAIN
    for index, spec in indexed_maps(pod, "spec", "initContainers"):
        role = Role.SIDECAR if spec.get("restartPolicy") == "Always" else Role.INIT
        yield spec, "initContainers", index, role


def mounted_volumes(pod: Json, container: Container) -> list[Json]:
    """The volumes of a pod that a container mounts."""
    names = {text(mount, "name") for mount in maps(container.spec, "volumeMounts")}
    return [volume for volume in maps(pod, "spec", "volumes") if text(volume, "name") in names]


def with_container(pod: Json, container: Container, spec: Json) -> Json:
    """A copy of a pod with one container replaced."""
    if spec is container.spec:
        return pod
    return replaced(pod, ("spec", container.list, container.index), spec)
