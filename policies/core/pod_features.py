"""Features of pods. A rule is called only for pods with the features that it requires, such as probes.

Law: if in doubt, a pod has the feature. A feature too many costs one call of a rule, a missing one hides a
hazard. A test compares the requirements of every rule with the corpus.
"""

from __future__ import annotations

from enum import Enum

from policies.kube.objects.pods import ContainerSpec, PodSpec, Probe


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


def features_of(pod: PodSpec, *, completes: bool) -> set[PodFeature]:
    """The features of a pod."""
    found: set[PodFeature] = set()
    if completes:
        found.add(PodFeature.COMPLETES)
    for container in pod.containers:
        _add_features(container, found)
    for container in pod.init_containers:
        if not container.is_sidecar:
            found.add(PodFeature.INIT)
        _add_features(container, found)
    if pod.host_network:
        found.add(PodFeature.HOST_PORT)
    for volume in pod.volumes:
        if volume.persistent_volume_claim is not None:
            found.add(PodFeature.CLAIM)
    return found


def _add_features(container: ContainerSpec, found: set[PodFeature]) -> None:
    for probe, feature in (
        (container.liveness_probe, PodFeature.LIVENESS),
        (container.readiness_probe, PodFeature.READINESS),
        (container.startup_probe, PodFeature.STARTUP),
    ):
        if probe is not None:
            found.add(feature)
            found.add(PodFeature.PROBE)
            _add_handlers(probe, found)
    if container.command or container.args:
        found.add(PodFeature.COMMAND)
    if container.lifecycle is not None:
        found.add(PodFeature.LIFECYCLE)
    for amounts in (container.resources.limits, container.resources.requests):
        for name in amounts:
            if "/" in name:
                found.add(PodFeature.EXTENDED)
    for port in container.ports:
        if port.host_port is not None:
            found.add(PodFeature.HOST_PORT)


def _add_handlers(probe: Probe, found: set[PodFeature]) -> None:
    """Add the features of a probe's handler."""
    if probe.exec is not None:
        found.add(PodFeature.EXEC)
        found.add(PodFeature.OTHER_HOST)
    for action, feature in ((probe.http_get, PodFeature.HTTP), (probe.tcp_socket, PodFeature.TCP)):
        if action is not None:
            found.add(feature)
            if action.host:
                found.add(PodFeature.OTHER_HOST)
