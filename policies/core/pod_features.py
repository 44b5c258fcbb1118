"""Features of pods. A rule is called only for pods with the features that it requires, such as probes.

Law: if in doubt, a pod has the feature. A feature too many costs one call of a rule, a missing one hides a
hazard. A test compares the requirements of every rule with the corpus.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from policies.kube.json import Json, dig, mapping, maps
from policies.kube.pods import Container, Role


class PodFeature(Enum):
    """A feature of a pod."""

    __hash__ = object.__hash__  # Enum's own hash runs in Python

    LIVENESS = "a livenessProbe"
    READINESS = "a readinessProbe"
    STARTUP = "a startupProbe"
    PROBE = "any probe"
    HTTP = "a probe with httpGet"
    TCP = "a probe with tcpSocket"
    EXEC = "a probe that runs a command"
    OTHER_HOST = "a probe that may ask another host: by a command, or with a host"
    INIT = "an init container that is no native sidecar"
    COMMAND = "a container with a command or arguments"
    LIFECYCLE = "a container with lifecycle hooks"
    EXTENDED = "a container that asks for an extended resource"
    HOST_PORT = "a port of the node, or the node's network"
    CLAIM = "a volume of a claim"
    COMPLETES = "an end: by its restartPolicy, or as a Job's"


_PROBES = (
    ("livenessProbe", PodFeature.LIVENESS),
    ("readinessProbe", PodFeature.READINESS),
    ("startupProbe", PodFeature.STARTUP),
)
_HANDLERS = (("httpGet", PodFeature.HTTP), ("tcpSocket", PodFeature.TCP))


def features_of(pod: Json, containers: tuple[Container, ...], *, completes: bool) -> set[PodFeature]:
    """The features of a pod."""
    found: set[PodFeature] = set()
    if completes:
        found.add(PodFeature.COMPLETES)
    for container in containers:
        spec = container.spec
        if container.role is Role.INIT:
            found.add(PodFeature.INIT)
        for field, feature in _PROBES:
            probe = spec.get(field)
            if probe:
                found.add(feature)
                found.add(PodFeature.PROBE)
                _add_handlers(probe, found)
        if "command" in spec or "args" in spec:
            found.add(PodFeature.COMMAND)
        if "lifecycle" in spec:
            found.add(PodFeature.LIFECYCLE)
        resources = spec.get("resources")
        if resources and _names_extended(resources):
            found.add(PodFeature.EXTENDED)
        for port in maps(spec, "ports"):
            if "hostPort" in port:
                found.add(PodFeature.HOST_PORT)
    if dig(pod, "spec", "hostNetwork") is True:
        found.add(PodFeature.HOST_PORT)
    for volume in maps(pod, "spec", "volumes"):
        if "persistentVolumeClaim" in volume:
            found.add(PodFeature.CLAIM)
    return found


def _names_extended(resources: Any) -> bool:
    return any("/" in name for kind in ("limits", "requests") for name in mapping(resources, kind))


def _add_handlers(probe: Any, found: set[PodFeature]) -> None:
    """Add the features of a probe's handler."""
    if type(probe) is not dict:
        return
    if "exec" in probe:
        found.add(PodFeature.EXEC)
        found.add(PodFeature.OTHER_HOST)
    for handler, feature in _HANDLERS:
        if handler in probe:
            found.add(feature)
            if dig(probe, handler, "host"):
                found.add(PodFeature.OTHER_HOST)
