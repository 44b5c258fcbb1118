"""The pod features without which a rule has no finding: a rule about probes is not called for a pod without
probes.

Law: in doubt a pod has a feature. A need that is met too often costs a call of a rule; one that is missed
hides a hazard. A test compares every rule's needs with the corpus.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from policies.kube.json import Json, dig, mapping, maps
from policies.kube.pods import Container, Role


class Need(Enum):
    """Something that a pod has."""

    __hash__ = object.__hash__  # a member is one object; by its name it would be hashed in Python

    LIVENESS = "a livenessProbe"
    READINESS = "a readinessProbe"
    STARTUP = "a startupProbe"
    PROBE = "any probe"
    HTTP = "a probe with httpGet"
    TCP = "a probe with tcpSocket"
    EXEC = "a probe that runs a command"
    ELSEWHERE = "a probe that may ask another host: by a command, or with a host"
    INIT = "an init container that is no native sidecar"
    COMMAND = "a container with a command or arguments of its own"
    LIFECYCLE = "a container with lifecycle hooks"
    EXTENDED = "a container that asks for an extended resource"
    HOST_PORT = "a port of the node, or the node's network"
    CLAIM = "a volume of a claim"
    COMPLETES = "an end: by its restartPolicy, or as a Job's"


_PROBES = (
    ("livenessProbe", Need.LIVENESS),
    ("readinessProbe", Need.READINESS),
    ("startupProbe", Need.STARTUP),
)
_HANDLERS = (("httpGet", Need.HTTP), ("tcpSocket", Need.TCP))


def had_by(pod: Json, containers: tuple[Container, ...], *, completes: bool) -> set[Need]:
    """What a pod has."""
    found: set[Need] = set()
    if completes:
        found.add(Need.COMPLETES)
    for container in containers:
        spec = container.spec
        if container.role is Role.INIT:
            found.add(Need.INIT)
        for field, need in _PROBES:
            probe = spec.get(field)
            if probe:
                found.add(need)
                found.add(Need.PROBE)
                _add_asked(probe, found)
        if "command" in spec or "args" in spec:
            found.add(Need.COMMAND)
        if "lifecycle" in spec:
            found.add(Need.LIFECYCLE)
        resources = spec.get("resources")
        if resources and _names_extended(resources):
            found.add(Need.EXTENDED)
        for port in maps(spec, "ports"):
            if "hostPort" in port:
                found.add(Need.HOST_PORT)
    if dig(pod, "spec", "hostNetwork") is True:
        found.add(Need.HOST_PORT)
    for volume in maps(pod, "spec", "volumes"):
        if "persistentVolumeClaim" in volume:
            found.add(Need.CLAIM)
    return found


def _names_extended(resources: Any) -> bool:
    return any("/" in name for kind in ("limits", "requests") for name in mapping(resources, kind))


def _add_asked(probe: Any, found: set[Need]) -> None:
    """Note the properties of a probe's handler."""
    if type(probe) is not dict:
        return
    if "exec" in probe:
        found.add(Need.EXEC)
        found.add(Need.ELSEWHERE)
    for handler, need in _HANDLERS:
        if handler in probe:
            found.add(need)
            if dig(probe, handler, "host"):
                found.add(Need.ELSEWHERE)
