"""Facts about the cluster of the object: listings of resources, and the effective settings."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import msgspec

from policies.core.listing import BY_NAME, NO_OBJECTS, Listing, Objects, ObjectT, TypedIndex
from policies.core.pod_view import PodView, PodViews
from policies.core.resources import Resource, resource_of
from policies.core.settings import SettingsLookup, default_settings
from policies.kube.cache import Cache, lazy
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json
from policies.kube.objects.limits import Namespace
from policies.kube.objects.nodes import Node
from policies.kube.objects.reading import readable

T = TypeVar("T", bound=msgspec.Struct)
Rank = tuple[bool, str]
"""Of an object: whether it is in the cluster, and its name, with its kind among several kinds."""


class Cluster(Protocol):
    """The known objects of the cluster: watch caches, or a set of manifests."""

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        """The objects of a resource, in one namespace or all; None if they are unknown."""
        ...


class WholeObjects:  # no subclass of Cluster: isinstance of a Protocol's class is a slow function of Python
    """A cluster with whole objects, as files and a scan have; the webhook's caches keep only some fields."""

    of_files = False
    """Whether all its objects are from files."""

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        """The objects of a resource, in one namespace or all; None if they are unknown."""
        raise NotImplementedError

    @lazy
    def cache(self) -> Cache:
        """Values that depend on what `every` returns."""
        return Cache()

    def named(self, kind: GroupKind, namespace: str, name: str) -> Json | None:
        """The object of a kind, a namespace (empty: not namespaced) and a name; None if it is unknown."""
        raise NotImplementedError

    def apart(self, obj: Json) -> bool:
        """Whether an object is certainly deployed by another kustomization or chart than the reviewed one."""
        return False

    def together(self, kind: GroupKind, namespace: str, name: str) -> Json | None:
        """What `named` returns, or another version of it that is not `apart`; None if there is none."""
        found = self.named(kind, namespace, name)
        return None if found is None or self.apart(found) else found

    def versions(self, kind: GroupKind, namespace: str, name: str) -> Sequence[Json]:
        """The objects of a kind, a namespace and a name in all files, also those that do not count for the
        reviewed file."""
        return ()

    def lacks(self, kind: GroupKind, namespace: str, name: str) -> bool:
        """Whether the object certainly does not exist, and no known object will create it."""
        return False

    def every(self, kind: GroupKind, namespace: str | None) -> Iterable[Json]:
        """The known objects of a kind in a namespace (empty: not namespaced; None: in all), of any kind in
        files."""
        return ()

    def typed(self, kind: GroupKind, namespace: str | None, as_type: type[T]) -> Iterator[T]:
        """What `every` returns as a type, without the objects that cannot be read, which their own reviews
        report."""
        found = (readable(obj, as_type) for obj in self.every(kind, namespace))
        return (each for each in found if each is not None)

    def makes_no(self, kind: GroupKind, namespace: str, name: str) -> bool:
        """Whether all that is applied together neither has such an object nor creates it; it may exist
        before."""
        return self.lacks(kind, namespace, name)

    def other_pods(self, namespace: str) -> Listing:
        """Pods without a controller, and ReplicationControllers: Services may select them, too."""
        return NO_OBJECTS


class NoCluster:
    """A cluster without known objects."""

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        return None


@dataclass(frozen=True, slots=True)
class Facts:
    """The cluster and the effective settings.

    Methods return None if a fact is unknown: no permission, not synced yet, not in the input. A rule must
    then stay silent or warn, never deny.
    """

    namespace: str = "default"
    cluster: Cluster = field(default_factory=NoCluster)
    settings: SettingsLookup = default_settings
    view: Callable[[Json], PodView] = field(default_factory=lambda: PodViews().of, repr=False, compare=False)
    """The view of a pod, made once a review."""
    cache: Cache = field(default_factory=Cache, init=False, repr=False, compare=False)
    """Values that depend on these facts."""
    pod_caches: Mapping[PodView, Cache] = field(
        default_factory=lambda: defaultdict(Cache), init=False, repr=False, compare=False
    )
    """Values that depend on these facts and one pod."""

    @property
    def whole(self) -> WholeObjects | None:
        """The cluster, if it has whole objects."""
        return self.cluster if isinstance(self.cluster, WholeObjects) else None

    def is_first(self, own: Rank, others: Iterable[Rank]) -> bool:
        """Whether the reviewed object is the one of several that has their finding, since one edit is right
        for all: an applied one, or the first by name among files and in a scan, and rather one of a file."""
        return self.whole is None or all(own < other for other in others)

    def listing(self, resource: Resource) -> Listing | None:
        """The objects of a namespaced resource in the object's own namespace."""
        return self.cluster.listing(resource, self.namespace)

    def objects(self, as_type: type[ObjectT]) -> Objects[ObjectT] | None:
        """The objects of a namespaced type in the object's own namespace."""
        listing = self.cluster.listing(resource_of(as_type), self.namespace)
        return None if listing is None else listing.objects(as_type)

    def cluster_objects(self, as_type: type[ObjectT]) -> Objects[ObjectT] | None:
        """The objects of a type that has no namespaces, or of all namespaces."""
        listing = self.cluster.listing(resource_of(as_type))
        return None if listing is None else listing.objects(as_type)

    def is_unread(self, as_type: type[ObjectT]) -> bool:
        """Whether the webhook doesn't know the objects of a type: it may not read them, or has not yet. Then
        nothing is certain that one of them could change. Files contain what they contain."""
        return self.whole is None and self.cluster.listing(resource_of(as_type)) is None

    def nodes(self) -> Listing | None:
        return self.cluster.listing(Resource.NODES)

    def oldest_kubelet(self) -> tuple[int, int] | None:
        """(major, minor) of the oldest kubelet. The API server is at least as new. Virtual kubelets of
        serverless platforms do not count: they report the version of a library."""
        return self.cache.once(_oldest_kubelet, self)

    def oldest_node(self) -> str | None:
        """The name of a node with the oldest kubelet."""
        nodes, oldest = self.cluster_objects(Node), self.oldest_kubelet()
        if not nodes or oldest is None:
            return None
        return min(node.name for node in nodes.by(_BY_KUBELET, oldest))

    def namespace_labels(self) -> Mapping[str, str] | None:
        """The labels of the object's namespace."""
        namespaces = self.cluster_objects(Namespace)
        found = None if namespaces is None else namespaces.named(self.namespace)
        return None if found is None else found.labels

    def namespace_annotations(self) -> Mapping[str, str]:
        """The annotations of the object's namespace in files; the webhook's caches keep none."""
        namespaces = self.cluster_objects(Namespace)
        found = None if namespaces is None else namespaces.named(self.namespace)
        return {} if found is None else found.metadata.annotations

    def model_config(self, name: str) -> Json | None:
        """The model-config ConfigMap of that name in the object's namespace."""
        return find_by_name(self.listing(Resource.MODEL_CONFIGS), name)


def _oldest_kubelet(facts: Facts) -> tuple[int, int] | None:
    nodes = facts.nodes()
    return min(nodes.by(_BY_KUBELET), default=None) if nodes else None


def find_by_name(listing: Listing | None, name: str) -> Json | None:
    """The object of a name; None if it does not exist or the listing is unknown."""
    return None if listing is None else listing.by(BY_NAME).one(name)


def is_virtual(node: Node) -> bool:
    """Whether virtual-kubelet.io runs the node."""
    return (
        node.metadata.labels.get("type") == "virtual-kubelet"
        or any(taint.key == "virtual-kubelet.io/provider" for taint in node.spec.taints)
        or "-vk-" in node.status.node_info.kubelet_version
    )


def _kubelet_of(node: Node) -> Iterator[tuple[int, int]]:
    match = re.match(r"v(\d{1,4})\.(\d{1,4})(?!\d)", node.status.node_info.kubelet_version)
    if match and not is_virtual(node):
        yield int(match[1]), int(match[2])


_BY_KUBELET: Final = TypedIndex(Node, _kubelet_of)
