"""What may be known of the cluster beside the object: listings of a few resources, the settings in force."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, overload

from policies.core.look import Looks, PodLook
from policies.core.resources import Resource
from policies.core.settings import SettingsLookup, default_settings
from policies.kube.json import Json, maps, text
from policies.kube.metadata import labels_of

T = TypeVar("T")


class Listing(Sequence[Json]):
    """The objects of one resource at one moment, with what was derived from them.

    Immutable; a changed object makes a new Listing, so whatever is derived is computed at most
    once per change however many requests ask for it.
    """

    __slots__ = ("__weakref__", "_derived", "_items")

    def __init__(self, items: Iterable[Json] = ()) -> None:
        self._items = tuple(items)
        self._derived: dict[Callable[[Listing], Any], Any] = {}

    @overload
    def __getitem__(self, index: int) -> Json: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Json, ...]: ...
    def __getitem__(self, index: int | slice) -> Json | tuple[Json, ...]:
        return self._items[index]

    def __iter__(self) -> Iterator[Json]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def derive(self, function: Callable[[Listing], T]) -> T:
        """`function(self)`, remembered for as long as this Listing lives.

        Pass a module-level function, not a lambda: the function itself is the key.
        """
        try:
            return self._derived[function]  # type: ignore[no-any-return]
        except KeyError:
            value = self._derived[function] = function(self)
            return value


class Cluster(Protocol):
    """What is known of the cluster. Implemented by the watch caches and by a set of manifests."""

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        """The objects of a resource (in one namespace, or all); None when that is not known."""
        ...


class NoCluster:
    """Nothing is known."""

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        return None


@dataclass(frozen=True, slots=True)
class Facts:
    """What a policy or rule may know beyond the object: the cluster and the settings in force.

    Every reader answers None when the fact is not known (no permission, not synced yet, not in
    the input); a rule must then say nothing or warn, never deny.
    """

    namespace: str = "default"
    cluster: Cluster = field(default_factory=NoCluster)
    settings: SettingsLookup = default_settings
    looks: Looks = field(default_factory=Looks, repr=False, compare=False)
    memo: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was worked out from these facts about one pod, so that it is worked out once; other settings are
    other facts, with a memo of their own."""

    def look(self, pod: Json) -> PodLook:
        """What a pod says of itself, read once a review."""
        return self.looks.of(pod)

    def listing(self, resource: Resource) -> Listing | None:
        """The objects of a namespaced resource in the object's own namespace."""
        return self.cluster.listing(resource, self.namespace)

    def nodes(self) -> Listing | None:
        return self.cluster.listing(Resource.NODES)

    def oldest_kubelet(self) -> tuple[int, int] | None:
        """(major, minor) of the oldest kubelet: what every node, and so the API server, can do.

        A virtual kubelet (of a serverless platform) does not count: its version is that of the library it was
        built with, for years, and says nothing of the API server.
        """
        nodes = self.nodes()
        oldest = nodes.derive(_oldest_kubelet) if nodes else None
        return oldest[:2] if oldest else None

    def oldest_node(self) -> str | None:
        """The name of a node that the oldest kubelet runs on."""
        nodes = self.nodes()
        oldest = nodes.derive(_oldest_kubelet) if nodes else None
        return oldest[2] if oldest else None

    def namespace_labels(self) -> Mapping[str, str] | None:
        """The labels of the object's namespace."""
        found = _named(self.cluster.listing(Resource.NAMESPACES), self.namespace)
        if found is None:
            return None
        labels = found["metadata"].get("labels")
        return labels if isinstance(labels, dict) else {}

    def model_config(self, name: str) -> Json | None:
        """The model-config ConfigMap of that name in the object's namespace."""
        return _named(self.listing(Resource.MODEL_CONFIGS), name)


def _named(listing: Listing | None, name: str) -> Json | None:
    return None if listing is None else listing.derive(_by_name).get(name)


def _kubelet_version(node: Json) -> str:
    """What a node says of its kubelet; empty where it says nothing, as in a manifest of a Node."""
    found: Any = node
    for key in ("status", "nodeInfo", "kubeletVersion"):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) else ""


def _is_virtual(node: Json) -> bool:
    """Whether no kubelet runs there: virtual-kubelet.io's own marks."""
    taints = maps(node, "spec", "taints")
    return (
        labels_of(node).get("type") == "virtual-kubelet"
        or any(taint.get("key") == "virtual-kubelet.io/provider" for taint in taints)
        or "-vk-" in _kubelet_version(node)
    )


def _oldest_kubelet(nodes: Listing) -> tuple[int, int, str] | None:
    versions = [(_kubelet_version(node), node) for node in nodes if not _is_virtual(node)]
    found = [(match, node) for version, node in versions if (match := re.match(r"v(\d+)\.(\d+)", version))]
    return min(
        ((int(match[1]), int(match[2]), text(node, "metadata", "name")) for match, node in found),
        default=None,
    )


def _by_name(listing: Listing) -> dict[str, Json]:
    return {obj["metadata"]["name"]: obj for obj in listing}
