"""The view of a pod, which all mutators and rules of a review share.

Law: a view depends only on its pod. Objects are edited by copying, so each view belongs to one object; parts
that an edit did not change are taken from the previous view.

Law of features: if in doubt, a pod has the feature. A feature too many costs one call of a rule, a missing
one hides a hazard. A test compares the requirements of every rule with the corpus.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import cache

from policies.core.annotations import PREFIX
from policies.core.workloads import known_workloads
from policies.kube.cache import lazy
from policies.kube.json import Json
from policies.kube.objects.metadata import OwnerReference
from policies.kube.objects.pods import ContainerSpec, Pod, PodSpec, Probe
from policies.kube.objects.reading import read
from policies.kube.pods import Container, Role, container_specs


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


class PodView:
    """A pod, read once: each value is computed at its first use."""

    def __init__(self, pod: Json, before: PodView | None = None) -> None:
        """`pod`: a map with `metadata` and `spec`. `before`: the view of the pod that it was copied from."""
        self.json = pod
        """The pod with all its fields, also those that this version does not know."""
        self._before = before

    @lazy
    def typed(self) -> Pod:
        """Its fields. Raises WrongTypeError; in a review the pod is undecided then."""
        return read(self.json, Pod)

    @lazy
    def chassis_annotations(self) -> Mapping[str, str]:
        """The annotations of `mlchassis.dev`."""
        annotations = self.typed.metadata.annotations
        return {key: value for key, value in annotations.items() if key.startswith(PREFIX)}

    @lazy
    def owner(self) -> OwnerReference | None:
        """The owner reference that is marked as controller."""
        return self.typed.metadata.controller

    @lazy
    def is_ray(self) -> bool:
        """Whether KubeRay made the pod as a Ray head or worker, and adds the probes itself."""
        labels, owner = self.typed.metadata.labels, self.owner
        if owner is not None and owner.kind == "RayCluster":
            return labels.get("ray.io/node-type") != "redis-cleanup"
        return labels.get("ray.io/is-ray-node") == "yes"

    @lazy
    def completes(self) -> bool:
        """Whether the pod runs to completion: by its restartPolicy or as a Job's."""
        if self.typed.spec.restart_policy in ("Never", "OnFailure"):
            return True
        return self.owner is not None and self.owner.kind in _completing_owners()

    @lazy
    def containers(self) -> tuple[Container, ...]:
        """All containers, main ones first; unchanged ones are the objects of the previous view."""
        before, self._before = self._before, None
        known = () if before is None else before.containers
        if before is not None and _same_containers(before.json, self.json):
            return known
        typed = vars(self).get("typed")
        return tuple(_viewed(self.json, known, None if typed is None else typed.spec))

    @lazy
    def main(self) -> tuple[Container, ...]:
        """The main containers."""
        return tuple([each for each in self.containers if each.role is Role.MAIN])

    @lazy
    def running(self) -> tuple[Container, ...]:
        """Main containers and native sidecars, which run at the same time."""
        return tuple([each for each in self.containers if each.role is not Role.INIT])

    @lazy
    def features(self) -> frozenset[PodFeature]:
        return frozenset(features_of(self.typed.spec, completes=self.completes))


def _same_containers(one: Json, other: Json) -> bool:
    before, after = one.get("spec"), other.get("spec")
    if type(before) is not dict or type(after) is not dict:
        return False
    return before.get("containers") is after.get("containers") and before.get("initContainers") is after.get(
        "initContainers"
    )


def _viewed(pod: Json, known: tuple[Container, ...], typed: PodSpec | None) -> Iterator[Container]:
    for number, (spec, place, index, role) in enumerate(container_specs(pod)):
        old = known[number] if number < len(known) else None
        if old is not None and old.index == index and old.role is role and old.list == place:
            if old.spec is spec:
                yield old
                continue
            new = old.with_spec(spec)
        else:
            new = Container(spec, place, index, role)
        if typed is not None:  # the conversion of the pod has made the container's
            new.typed = (typed.containers if role is Role.MAIN else typed.init_containers)[index]
        yield new


@cache
def _completing_owners() -> frozenset[str]:
    return frozenset(each.owner or each.kind for each in known_workloads() if each.completes)


class PodViews:
    """The views of the pods of one review, by object."""

    __slots__ = ("_known", "_last")

    def __init__(self, known: Iterable[PodView] = ()) -> None:
        self._known: dict[int, PodView] = {}
        self._last: PodView | None = None
        for view in known:
            self.add(view)

    def add(self, view: PodView) -> PodView:
        """Add a view."""
        self._known[id(view.json)] = view  # keeps the pod, so that no other object gets its id
        self._last = view
        return view

    def of(self, pod: Json) -> PodView:
        """The view of a pod. A new pod is most likely an edited copy of the last one."""
        known = self._known.get(id(pod))
        return known if known is not None else self.add(PodView(pod, self._last))
