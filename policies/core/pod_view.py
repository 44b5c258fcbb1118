"""The view of a pod, which all mutators and rules of a review share.

Law: a view depends only on its pod. Objects are edited by copying, so each view belongs to one object; parts
that an edit did not change are taken from the previous view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Final

from policies.core.annotations import DOMAIN
from policies.core.pod_features import PodFeature, features_of
from policies.core.workloads import known_workloads
from policies.kube.json import Json
from policies.kube.objects.metadata import OwnerReference
from policies.kube.objects.pods import Pod, PodSpec
from policies.kube.objects.reading import read
from policies.kube.pods import Container, Role, container_specs, is_ray_node

_OURS: Final = f"{DOMAIN}/"


class PodView:
    """A pod, read once."""

    __slots__ = (
        "_before",
        "_chassis_annotations",
        "_containers",
        "_features",
        "_running",
        "_typed",
        "pod",
    )

    def __init__(self, pod: Json, before: PodView | None = None) -> None:
        """`pod`: a map with `metadata` and `spec`. `before`: the view of the pod that it was copied from."""
        self.pod = pod
        self._before = before
        self._containers: tuple[Container, ...] | None = None
        self._running: tuple[Container, ...] | None = None
        self._features: frozenset[PodFeature] | None = None
        self._typed: Pod | None = None
        self._chassis_annotations: Mapping[str, str] | None = None

    @property
    def typed(self) -> Pod:
        """Its fields. Raises WrongTypeError; in a review the pod is undecided then."""
        found = self._typed
        if found is None:
            found = self._typed = read(self.pod, Pod)
        return found

    @property
    def chassis_annotations(self) -> Mapping[str, str]:
        """The annotations of `mlchassis.dev`."""
        found = self._chassis_annotations
        if found is None:
            annotations = self.typed.metadata.annotations
            found = {key: value for key, value in annotations.items() if key.startswith(_OURS)}
            self._chassis_annotations = found
        return found

    @property
    def owner(self) -> OwnerReference | None:
        """The owner reference that is marked as controller."""
        return self.typed.metadata.controller

    @property
    def is_ray(self) -> bool:
        """Whether KubeRay made the pod as a Ray head or worker."""
        return is_ray_node(self.typed.metadata)

    @property
    def completes(self) -> bool:
        """Whether the pod runs to completion: by its restartPolicy or as a Job's."""
        if self.typed.spec.restart_policy in ("Never", "OnFailure"):
            return True
        owner = self.owner
        return owner is not None and owner.kind in _completing_owners()

    @property
    def containers(self) -> tuple[Container, ...]:
        """All containers, main ones first; unchanged ones are the objects of the previous view."""
        found = self._containers
        if found is None:
            before, self._before = self._before, None
            known = () if before is None else before.containers
            if before is not None and _same_containers(before.pod, self.pod):
                found = known
            else:
                found = tuple(_viewed(self.pod, known))
                if self._typed is not None:
                    _give_types(found, self._typed.spec)
            self._containers = found
        return found

    @property
    def running(self) -> tuple[Container, ...]:
        """Main containers and native sidecars, which run at the same time."""
        found = self._running
        if found is None:
            found = self._running = tuple(each for each in self.containers if each.role is not Role.INIT)
        return found

    @property
    def features(self) -> frozenset[PodFeature]:
        found = self._features
        if found is None:
            found = self._features = frozenset(features_of(self.typed.spec, completes=self.completes))
        return found


def _same_containers(one: Json, other: Json) -> bool:
    before, after = one.get("spec"), other.get("spec")
    if type(before) is not dict or type(after) is not dict:
        return False
    return before.get("containers") is after.get("containers") and before.get("initContainers") is after.get(
        "initContainers"
    )


def _viewed(pod: Json, known: tuple[Container, ...]) -> Iterator[Container]:
    for number, (spec, place, index, role) in enumerate(container_specs(pod)):
        old = known[number] if number < len(known) else None
        if old is None or old.index != index or old.role is not role or old.list != place:
            yield Container(spec, place, index, role)
        else:
            yield old if old.spec is spec else old.with_spec(spec)


def _give_types(containers: Iterable[Container], pod: PodSpec) -> None:
    """Give new containers the types that the pod's conversion made."""
    for container in containers:
        specs = pod.containers if container.role is Role.MAIN else pod.init_containers
        container.know_type(specs[container.index])


@cache
def _completing_owners() -> frozenset[str]:
    return frozenset(each.owner or each.kind for each in known_workloads() if each.completes)


def completes(pod: Json) -> bool:
    """Whether a pod runs to completion; see `PodView.completes`."""
    return PodView(pod).completes


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
        self._known[id(view.pod)] = view  # keeps the pod, so that no other object gets its id
        self._last = view
        return view

    def of(self, pod: Json) -> PodView:
        """The view of a pod. A new pod is most likely an edited copy of the last one."""
        known = self._known.get(id(pod))
        return known if known is not None else self.add(PodView(pod, self._last))
