"""One look at each pod of a review, shared by every mutator and rule that asks.

Law: what a look answers follows from the pod alone, and is worked out when it is first asked for. Objects are
edited by copying, so a look belongs to one object and goes with the review.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from itertools import zip_longest
from typing import Final

from policies.core.annotations import DOMAIN
from policies.core.needs import Need, had_by
from policies.core.workloads import known_workloads
from policies.kube.json import Json, text
from policies.kube.metadata import annotations_of, controller
from policies.kube.pods import Container, Role, containers, is_ray_node

_OURS: Final = f"{DOMAIN}/"


class PodLook:
    """What a pod says of itself, read once."""

    def __init__(self, pod: Json, before: PodLook | None = None) -> None:
        """`pod`: a map with `metadata` and `spec`. `before`: a look at what it was copied from."""
        self.pod = pod
        self._before = before

    @cached_property
    def containers(self) -> tuple[Container, ...]:
        """All containers, main ones first; those that stayed as they were are the same objects as before."""
        found = tuple(containers(self.pod))
        before, self._before = self._before, None
        if before is None:
            return found
        pairs = zip_longest(found, before.containers[: len(found)])
        return tuple(one if old is None else _as_known(one, old) for one, old in pairs)

    @cached_property
    def running(self) -> tuple[Container, ...]:
        """The containers that run beside each other: main ones and native sidecars."""
        return tuple(each for each in self.containers if each.role is not Role.INIT)

    @cached_property
    def annotations(self) -> Mapping[str, str]:
        return annotations_of(self.pod)

    @cached_property
    def ours(self) -> Mapping[str, str]:
        """The annotations of this project's own domain."""
        return {key: value for key, value in self.annotations.items() if key.startswith(_OURS)}

    @cached_property
    def owner(self) -> Json | None:
        """The owner reference that is marked as controller."""
        return controller(self.pod)

    @cached_property
    def is_ray(self) -> bool:
        """Whether KubeRay made the pod as a Ray head or worker."""
        return is_ray_node(self.pod)

    @cached_property
    def has(self) -> frozenset[Need]:
        """What rules may need of it."""
        return frozenset(had_by(self.pod, self.containers, completes=self.completes))

    @cached_property
    def completes(self) -> bool:
        """Whether the pod runs to completion: by its restartPolicy or as a Job's."""
        if text(self.pod, "spec", "restartPolicy") in ("Never", "OnFailure"):
            return True
        return self.owner is not None and text(self.owner, "kind") in _completing_owners()


def _as_known(one: Container, old: Container) -> Container:
    if old.index != one.index or old.role is not one.role or old.list != one.list:
        return one
    return old if old.spec is one.spec else old.edited(one.spec)


@cache
def _completing_owners() -> frozenset[str]:
    return frozenset(each.owner or each.kind for each in known_workloads() if each.completes)


def completes(pod: Json) -> bool:
    """Whether a pod runs to completion; see `PodLook.completes`."""
    return PodLook(pod).completes


class Looks:
    """The looks at the pods of one review, by the object looked at."""

    __slots__ = ("_known", "_last")

    def __init__(self, known: Iterable[PodLook] = ()) -> None:
        self._known: dict[int, PodLook] = {}
        self._last: PodLook | None = None
        for look in known:
            self.keep(look)

    def keep(self, look: PodLook) -> PodLook:
        """Answer with this look where its pod is asked about."""
        self._known[id(look.pod)] = look  # which keeps the pod: its id is nobody else's meanwhile
        self._last = look
        return look

    def of(self, pod: Json) -> PodLook:
        """The look at a pod; one that was not seen before is most likely a copy of the last one, edited."""
        known = self._known.get(id(pod))
        return known if known is not None else self.keep(PodLook(pod, self._last))
