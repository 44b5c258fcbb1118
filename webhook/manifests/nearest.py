"""Which objects of several files count for one of these files.

Files of one directory tree may describe several environments, applications or tutorials. Law: of several
readings none is assumed, and an object counts for a file unless another file is certainly nearer to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import Final, TypeAlias

from msgspec import Struct

from policies.core.autoscalers import MAKERS
from policies.kube.group_kinds import (
    AUTOSCALER,
    CLAIM,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    LOCAL_QUEUE,
    POD,
    SERVICE,
    STATEFUL_SET,
    GroupKind,
    kind_of,
)
from policies.kube.json import Json, mapping, text
from policies.kube.metadata import labels_of
from policies.kube.objects.queues import QUEUE_NAME
from webhook.manifests.rendered import KUSTOMIZATIONS

Parts: TypeAlias = tuple[str, ...]
"""The directories of a file, and its name."""

ROUTES: Final = (
    GroupKind("networking.k8s.io", "Ingress"),
    GroupKind("gateway.networking.k8s.io", "HTTPRoute"),
    GroupKind("gateway.networking.k8s.io", "GRPCRoute"),
)
_ESSENTIAL: Final = {
    **dict.fromkeys((DEPLOYMENT, STATEFUL_SET, DISRUPTION_BUDGET, SERVICE), "selector"),
    **dict.fromkeys((AUTOSCALER, *MAKERS), "scaleTargetRef"),
    CLAIM: "accessModes",
    GroupKind("", "ResourceQuota"): "hard",
    GroupKind("", "LimitRange"): "limits",
    LOCAL_QUEUE: "clusterQueue",
    GroupKind("kueue.x-k8s.io", "ClusterQueue"): "resourceGroups",
    **dict.fromkeys(ROUTES, "rules"),
}
"""Kinds with versions in several files, and a field that is absent in a patch."""
_LABELS: Final = ("spec", "template", "metadata", "labels")
_SELECTORS: Final = {SERVICE: ("spec", "selector"), DISRUPTION_BUDGET: ("spec", "selector", "matchLabels")}
_LIMITING: Final = frozenset(
    (
        AUTOSCALER,
        *MAKERS,
        DISRUPTION_BUDGET,
        GroupKind("", "ResourceQuota"),
        GroupKind("", "LimitRange"),
    )
)
"""Kinds that only restrict or scale pods."""
MAX_COMPARED: Final = 5_000_000
"""Comparisons of versions and files, or of selectors and workloads (about 8 s); with more, all count."""


_SCALING: Final = (AUTOSCALER, *MAKERS)
_NAMING: Final = (LOCAL_QUEUE, *_SCALING)
"""Kinds that belong to workloads by name: no other ones are meant, even in the same directory."""
_SCALED: Final = "scaleTargetRef"


class _Selected(Struct, frozen=True):
    """The workloads that an object selects."""

    nearness: int
    """Of the nearest one to the object."""
    by: frozenset[Parts]
    """Their files."""


class _Selectors(Struct, frozen=True):
    """The Services, budgets, autoscalers and queues that workloads of other files may be nearer to."""

    selected: dict[int, _Selected]
    """What each of them selects, by its index."""
    as_near: dict[Parts, list[int]]
    """Those for which each file below a path is as near as the nearest workload."""
    within: dict[Parts, list[int]]
    """Those in a directory."""
    below: dict[Parts, list[int]]
    """Those in directories below a directory."""


class Nearest:
    """The objects that do not count for a file: farther versions of an object of which another file has its
    own, and what belongs to workloads of other files."""

    def __init__(self, objects: Sequence[Json], sources: Iterable[str]) -> None:
        """`sources`: the file of each object; empty if the files are unknown."""
        self._objects = objects
        self._files = [Path(source).parts for source in sources]

    def hidden_from(self, source: str) -> frozenset[int]:
        """The indices of the objects that do not count for a file.

        If several files contain versions of an object, as for several environments, only the nearest version
        counts. A Service or budget that selects a workload nearer to it than this file belongs to that one.
        It counts for this file only if it is in the same directory, or one above or below, and selects no
        workload of this file. A queue belongs to the nearest workload that names it, and an autoscaler to the
        nearest version of its target. What restricts or scales
        pods, and is in a file that a kustomization of its directory leaves out, doesn't count for its result.
        """
        own = Path(source).parts
        farther = (index for versions in self._versions for index in self._farther(versions, own))
        others = self._selectors.selected.keys() - self._shared(own)
        return frozenset((*farther, *others, *self._left_out(own)))

    def _left_out(self, own: Parts) -> Iterator[int]:
        if own and own[-1] in KUSTOMIZATIONS:
            for index in self._limiting.get(own[:-1], ()):
                if self._files[index] != own:
                    yield index

    @cached_property
    def _limiting(self) -> dict[Parts, list[int]]:
        """The objects in a directory that only restrict or scale pods."""
        found: dict[Parts, list[int]] = {}
        for index, (obj, file) in enumerate(zip(self._objects, self._files, strict=False)):
            if kind_of(obj) in _LIMITING:
                found.setdefault(file[:-1], []).append(index)
        return found

    @cached_property
    def _versions(self) -> list[list[int]]:
        """The indices of the versions of each object with several."""
        found: dict[tuple[GroupKind, str, str], list[int]] = {}
        for index, (obj, _) in enumerate(zip(self._objects, self._files, strict=False)):
            kind = kind_of(obj)
            if _ESSENTIAL.get(kind, "") in mapping(obj, "spec"):
                key = (kind, namespace_of(obj), text(obj, "metadata", "name"))
                if kind in _SCALING:  # in several files, they are alternatives
                    key = AUTOSCALER, key[1], _scaled_by(obj)
                found.setdefault(key, []).append(index)
        several = [versions for versions in found.values() if len(versions) > 1]
        compared = len(set(self._files)) * sum(map(len, several))
        return several if compared <= MAX_COMPARED else []

    def _farther(self, versions: list[int], own: Parts) -> Iterator[int]:
        """The versions that do not count for a file, and duplicates."""
        nearness = [_nearness(own, self._files[index]) for index in versions]
        most = max(nearness)
        nearest: list[Json] = []
        for index, near in zip(versions, nearness, strict=True):
            obj = self._objects[index]
            if near < most or (self._files[index] != own and obj in nearest):
                yield index
            else:
                nearest.append(obj)

    def _shared(self, own: Parts) -> Iterator[int]:
        """The Services, budgets, autoscalers and queues that count for a file."""
        known = self._selectors
        for length in range(len(own) + 1):
            yield from known.as_near.get(own[:length], ())
        around = [known.within.get(own[:length], ()) for length in range(len(own))]
        for index in (*known.below.get(own[:-1], ()), *(each for found in around for each in found)):
            if own not in known.selected[index].by and kind_of(self._objects[index]) not in _NAMING:
                yield index

    @cached_property
    def _selectors(self) -> _Selectors:
        found = _Selectors(self._select(), {}, {}, {})
        for index, selected in found.selected.items():
            file = self._files[index]
            found.as_near.setdefault(file[: selected.nearness], []).append(index)
            found.within.setdefault(file[:-1], []).append(index)
            for length in range(len(file) - 1):
                found.below.setdefault(file[:length], []).append(index)
        return found

    def _select(self) -> dict[int, _Selected]:
        """What each Service and budget selects, what each autoscaler scales, and what names each queue, by
        its index."""
        scaled = {_scaled_by(obj) for obj in self._objects if kind_of(obj) in _SCALING}
        by_label: dict[tuple[str, object, object], list[tuple[Parts, Json]]] = {}
        selectors: list[tuple[int, Parts, Json]] = []
        for index, (obj, file) in enumerate(zip(self._objects, self._files, strict=False)):
            labels = mapping(obj, *(_LABELS[-2:] if kind_of(obj) == POD else _LABELS))
            if queue := labels_of(obj).get(QUEUE_NAME):
                labels = {**labels, QUEUE_NAME: queue}
            if scaled and (own := _scalable(obj)) in scaled:
                labels = {**labels, _SCALED: own}
            for key, value in labels.items():
                by_label.setdefault((namespace_of(obj), key, str(value)), []).append((file, labels))
            if selector := _selector(obj):
                selectors.append((index, file, selector))
        found = {}
        compared = 0
        for index, file, selector in selectors:
            namespace = namespace_of(self._objects[index])
            # Each label of the selector has all selected workloads; the rarest one has the fewest others.
            every = (by_label.get((namespace, key, str(value)), []) for key, value in selector.items())
            candidates = min(every, key=len)
            compared += len(candidates)
            if compared > MAX_COMPARED:
                return {}
            files = frozenset(of for of, labels in candidates if selector.items() <= labels.items())
            if len(files) > 1 or (files and _SCALED not in selector):  # the only version is meant everywhere
                found[index] = _Selected(max(_nearness(file, each) for each in files), files)
        return found


def namespace_of(obj: Json) -> str:
    return text(obj, "metadata", "namespace") or "default"


def _selector(obj: Json) -> Json:
    """The labels by which a Service or a budget selects pods, or workloads name a queue; of an autoscaler
    its target; else empty."""
    if kind_of(obj) == LOCAL_QUEUE:
        return {QUEUE_NAME: text(obj, "metadata", "name")}
    if kind_of(obj) in _SCALING:
        return {_SCALED: _scaled_by(obj)}
    return mapping(obj, *_SELECTORS.get(kind_of(obj), ("none",)))


def _scaled_by(autoscaler: Json) -> str:
    """The kind and name of what an autoscaler scales."""
    scaled = mapping(autoscaler, "spec", "scaleTargetRef")
    return f"{scaled.get('kind') or 'Deployment'}/{scaled.get('name')}"


def _scalable(obj: Json) -> str:
    """The kind and name of an object, as an autoscaler writes them; empty for a patch of it."""
    field = _ESSENTIAL.get(kind_of(obj))
    if field is not None and field not in mapping(obj, "spec"):
        return ""
    return f"{text(obj, 'kind')}/{text(obj, 'metadata', 'name')}"


def _nearness(one: Parts, other: Parts) -> int:
    """The number of equal parts at the start of two paths."""
    return sum(takewhile(bool, map(eq, one, other)))
