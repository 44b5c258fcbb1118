"""The containers of a pod, each with its place and its role."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Final

from policies.kube.json import Json, indexed_maps, maps, replaced, text
from policies.kube.metadata import controller, labels_of

DEFAULT_GRACE: Final = 30
"""Seconds of `terminationGracePeriodSeconds` where it is not given."""


class Role(Enum):
    """What a container is in its pod."""

    MAIN = "main"
    SIDECAR = "sidecar"
    """A native sidecar: an init container with `restartPolicy: Always`."""
    INIT = "init"


_RUNS: Final = ("name", "image", "command", "args", "env", "envFrom", "ports", "volumeMounts")
"""The fields that decide what runs in a container, and on which ports."""


@dataclass(frozen=True)
class Container:
    """A container with its place: `list` is `containers` or `initContainers`."""

    spec: Json
    list: str
    index: int
    role: Role
    memo: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was worked out from its name, image, command, arguments, environment, ports and mounts alone."""

    @cached_property
    def name(self) -> str:
        return text(self.spec, "name")

    @cached_property
    def image(self) -> str:
        return text(self.spec, "image")

    @property
    def place(self) -> str:
        """Where it stands in its pod, by name: `spec.containers[api]`."""
        return f"spec.{self.list}[{self.name}]"

    @cached_property
    def tcp_ports(self) -> dict[int, str]:
        """The declared TCP ports, each with its name (empty when it has none), in order."""
        return tcp_ports(self.spec)

    def edited(self, spec: Json) -> Container:
        """The container with another spec, in the same place; what runs in it is known if that stayed."""
        other = Container(spec, self.list, self.index, self.role)
        if all(spec.get(key) is self.spec.get(key) for key in _RUNS):
            object.__setattr__(other, "memo", self.memo)
        return other


def tcp_ports(container: Json) -> dict[int, str]:
    """The declared TCP ports, each with its name (empty when it has none), in order."""
    return {
        port["containerPort"]: text(port, "name")
        for port in maps(container, "ports")
        if type(port.get("containerPort")) is int and port.get("protocol") in (None, "TCP")
    }


def containers(pod: Json, *roles: Role) -> Iterator[Container]:
    """The containers of a pod (a map with `spec`), main ones first; of the given roles, or all."""
    for index, spec in indexed_maps(pod, "spec", "containers"):
        if not roles or Role.MAIN in roles:
            yield Container(spec, "containers", index, Role.MAIN)
    for index, spec in indexed_maps(pod, "spec", "initContainers"):
        role = Role.SIDECAR if spec.get("restartPolicy") == "Always" else Role.INIT
        if not roles or role in roles:
            yield Container(spec, "initContainers", index, role)


def is_ray_node(pod: Json) -> bool:
    """Whether KubeRay made the pod as a Ray head or worker (and fills its probes itself)."""
    owner = controller(pod)
    if owner is not None and owner.get("kind") == "RayCluster":
        return labels_of(pod).get("ray.io/node-type") != "redis-cleanup"
    return labels_of(pod).get("ray.io/is-ray-node") == "yes"


def edited(pod: Json, container: Container, spec: Json) -> Json:
    """A copy of a pod with one container replaced."""
    if spec is container.spec:
        return pod
    return replaced(pod, ("spec", container.list, container.index), spec)
