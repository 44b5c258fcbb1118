"""A cluster after a set of manifests is applied: the manifests replace objects with their names, and all
other objects stay.

Applying a manifest keeps fields that it does not contain and that controllers set: the address of a Service,
the replicas that an autoscaler chose, the ready pods. `policies.core.resources` lists these fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from policies.core.facts import Cluster, WholeObjects
from policies.core.listing import Listing
from policies.core.resources import Resource, resource_kinds
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json, dig, replaced, text
from policies.relations.links import CACHED_LINKS
from webhook.manifests.cluster import ManifestCluster


class OverlaidCluster(WholeObjects):
    """The `policies.core.facts.Cluster` of manifests and the cluster that they are applied to."""

    def __init__(self, manifests: ManifestCluster, cluster: Cluster) -> None:
        """`cluster` must not change."""
        self._manifests, self._cluster = manifests, cluster
        self._merged: dict[tuple[Resource, str | None], Listing] = {}

    def named(self, kind: GroupKind, namespace: str, name: str) -> Json | None:
        found = self._manifests.named(kind, namespace, name)
        if found is None and isinstance(self._cluster, WholeObjects):
            return self._cluster.named(kind, namespace, name)
        return found

    def lacks(self, kind: GroupKind, namespace: str, name: str) -> bool:
        return (
            self._manifests.whole
            and isinstance(self._cluster, WholeObjects)
            and self._cluster.lacks(kind, namespace, name)
            and self._manifests.leaves_out(kind, namespace, name)
        )

    def every(self, kind: GroupKind, namespace: str | None) -> Iterable[Json]:
        return self._manifests.every(kind, namespace)

    def other_pods(self, namespace: str) -> Listing:
        return self._manifests.other_pods(namespace)

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        live, written = (each.listing(resource, namespace) for each in (self._cluster, self._manifests))
        if live is None or not written:
            return written if live is None else live
        if resource is Resource.OBSERVED:
            return written  # the file of an argument
        key = (resource, namespace)
        if key not in self._merged:
            self._merged[key] = Listing(_merged(resource, live, written))
        return self._merged[key]


def _merged(resource: Resource, live: Listing, written: Listing) -> Iterator[Json]:
    manifests = {_identity(resource, obj): obj for obj in written}
    before = {_identity(resource, obj): obj for obj in live}
    yield from (obj for identity, obj in before.items() if identity not in manifests)
    for identity, obj in manifests.items():
        yield _applied(resource, obj, before.get(identity))


def _identity(resource: Resource, obj: Json) -> tuple[str, str, str]:
    # Cached objects have a kind only if their resource has several.
    kind = text(obj, "kind") if resource is Resource.WORKLOADS else ""
    return kind, text(obj, "metadata", "namespace"), text(obj, "metadata", "name")


def _applied(resource: Resource, obj: Json, before: Json | None) -> Json:
    """The object of a manifest with the fields that applying it keeps."""
    for path in _stays(resource) if before is not None else ():
        known = dig(before, *path)
        if known is not None and dig(obj, *path) is None:
            obj = replaced(obj, path, known)
    if before is not None and resource is Resource.WORKLOADS:
        obj = replaced(obj, ("status", "replicas"), dig(before, "spec", "replicas"))
    ready = before is not None and getattr(before.get(CACHED_LINKS), "ready", False)
    return replaced(obj, ("status", "readyReplicas"), 1) if ready else obj


@cache
def _stays(resource: Resource) -> frozenset[tuple[str, ...]]:
    """The fields of a resource's objects that applying a manifest keeps."""
    own = (known.stays for known in resource_kinds() if known.resource is resource)
    return frozenset(tuple(path.split(".")) for stays in own for path in stays)
