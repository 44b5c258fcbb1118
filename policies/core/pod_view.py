"""One view of each pod of a review, shared by every mutator and rule that asks.

Law: the answers of a view depend only on the pod. Objects are edited by copying, so a view belongs to one
object and ends with the review; parts that an edit did not change are not read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Final

from policies.core.annotations import DOMAIN
from policies.core.pod_features import PodFeature, features_of
from policies.core.workloads import known_workloads
from policies.kube.json import Json, text
from policies.kube.metadata import annotations_of, controller
from policies.kube.pods import Container, Role, container_specs, is_ray_node

_OURS: Final = f"{DOMAIN}/"


class PodView:
    """A pod's spec, read once."""

    __slots__ = (
        "_before",
        "_containers",
        "_features",
        "_running",
        "annotations",
        "completes",
        "is_ray",
        "ours",
        "owner",
        "pod",
    )

    annotations: Mapping[str, str]
    ours: Mapping[str, str]
    """The annotations of this project's own domain."""
    owner: Json | None
    """The owner reference that is marked as controller."""
    is_ray: bool
    """Whether KubeRay made the pod as a Ray head or worker."""
    completes: bool
    """Whether the pod runs to completion: by its restartPolicy or as a Job's."""

    def __init__(self, pod: Json, before: PodView | None = None) -> None:
        """`pod`: a map with `metadata` and `spec`. `before`: the view of the pod that it was copied from."""
        self.pod = pod
        self._before = before
        self._containers: tuple[Container, ...] | None = None
        self._running: tuple[Container, ...] | None = None
        self._features: frozenset[PodFeature] | None = None
        if before is not None and before.pod.get("metadata") is pod.get("metadata"):
            self.annotations, self.ours = before.annotations, before.ours
            self.owner, self.is_ray = before.owner, before.is_ray
        else:
            self.annotations = annotations_of(pod)
            self.ours = {key: value for key, value in self.annotations.items() if key.startswith(_OURS)}
            self.owner = controller(pod)
            self.is_ray = is_ray_node(pod)
        self.completes = text(pod, "spec", "restartPolicy") in ("Never", "OnFailure") or (
            self.owner is not None and text(self.owner, "kind") in _completing_owners()
        )

    @property
    def containers(self) -> tuple[Container, ...]:
        """All containers, main ones first; those that stayed as they were are the same objects as before."""
        found = self._containers
        if found is None:
            before, self._before = self._before, None
            known = () if before is None else before.containers
            if before is not None and _same_containers(before.pod, self.pod):
                found = known
            else:
                found = tuple(_viewed(self.pod, known))
            self._containers = found
        return found

    @property
    def running(self) -> tuple[Container, ...]:
        """The containers that run at the same time: main ones and native sidecars."""
        found = self._running
        if found is None:
            found = self._running = tuple(each for each in self.containers if each.role is not Role.INIT)
        return found

    @property
    def features(self) -> frozenset[PodFeature]:
        """The features that rules may require of it."""
        found = self._features
        if found is None:
            found = self._features = frozenset(
                features_of(self.pod, self.containers, completes=self.completes)
            )
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
            self.keep(view)

    def keep(self, view: PodView) -> PodView:
        """Answer with this view when its pod is asked about."""
        self._known[id(view.pod)] = view  # which keeps the pod: its id is nobody else's meanwhile
        self._last = view
        return view

    def of(self, pod: Json) -> PodView:
        """The view of a pod; one that was not seen before is most likely an edited copy of the last one."""
        known = self._known.get(id(pod))
        return known if known is not None else self.keep(PodView(pod, self._last))
