"""Facts about the cluster: watch caches of the few resources that policies and rules read.

Law: a cache answers from memory or with "unknown"; no request waits for it. It stores only the fields that
`policies.core.resources` names: 5,000 nodes, 10,000 Services and 50,000 claims fit.

A resource is unknown until its first list is complete, and again when the API server forbids reading it.
During an outage of the API server the last state stays: a stale selector of a Service is better than none,
and no rule denies because of an absent object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from sys import getsizeof
from typing import Any, Final, TypeAlias, TypeVar

import structlog

from policies.core.facts import Cluster, Facts
from policies.core.listing import NO_OBJECTS, Change, InheritedIndices, Listing
from policies.core.resources import Resource, ResourceKind, resource_kinds
from policies.kube.group_kinds import GroupKind, kind_of
from policies.kube.json import Json, dig, mapping, maps, text
from policies.kube.objects.reading import WrongTypeError
from policies.probes.observed import OBSERVED, trimmed
from policies.relations.devices import OFFER, offer_of
from policies.relations.links import CACHED_LINKS, CachedLinks, cached_links
from webhook.kube import paths
from webhook.kube.api import TOO_LARGE
from webhook.kube.calls import ApiError
from webhook.kube.reflector import Lister, Reflector

K = TypeVar("K")

MERGED_KEPT = 5_000
"""The maximum number of cached listings of several kinds."""

STORE_BYTES = 128 * 1024 * 1024
"""The maximum for the objects of one kind, about ten times the largest cluster. Users choose how many objects
exist: a kind with more becomes unknown, so that it cannot exhaust the memory."""
_ENTRY_BYTES = 40
"""The cost of a value's entry in a dict or a list."""
_LINK_BYTES = 300
"""The cost of a link with its texts."""


class ClusterCache:
    """The `policies.core.facts.Cluster` of a running webhook."""

    def __init__(
        self,
        on_sync: Callable[[Resource, bool], None] = lambda _, __: None,
        on_change: Callable[[Resource], None] = lambda _: None,
        namespace: str = "mlchassis-system",
        on_skip: Callable[[Resource], None] = lambda _: None,
    ) -> None:
        """`on_sync` is called when a resource becomes known or unknown, `on_change` when its objects change,
        `on_skip` for an object with a value of a wrong type, which is left out. `namespace`: the webhook's
        own."""
        self._on_sync, self._on_change = on_sync, on_change
        self._stores: dict[Resource, list[Store | ObservedStarts]] = {}
        self.sources: list[tuple[str, Mapping[str, str], Store | ObservedStarts]] = []
        for known in resource_kinds():
            store = Store(known, on_sync=self._synced, on_change=self._changed, on_skip=on_skip)
            self._stores.setdefault(known.resource, []).append(store)
            query = {"labelSelector": known.selector} if known.selector else {}
            self.sources.append((paths.collection(known.api_version, known.plural), query, store))
        starts = ObservedStarts(on_sync=self._synced, on_change=self._changed)
        self._stores[Resource.OBSERVED] = [starts]
        one = {"fieldSelector": f"metadata.name={OBSERVED}"}
        self.sources.append((paths.collection("v1", "configmaps", namespace), one, starts))
        for resource in self._stores:
            on_sync(resource, False)
        self._merged: dict[tuple[Resource, str | None], tuple[tuple[Listing, ...], Listing]] = {}
        self._carried: dict[tuple[Resource, str | None], InheritedIndices] = {}

    def fill(self, objects: Iterable[Json]) -> None:
        """Take objects for the first lists of their kinds. Resources without an object stay unknown."""
        listed: dict[GroupKind, list[Json]] = {}
        for obj in objects:
            listed.setdefault(kind_of(obj), []).append(obj)
        for stores in self._stores.values():
            own = [store for store in stores if isinstance(store, Store)]
            if not any(store.group_kind in listed for store in own):
                continue
            for store in own:
                store.begin()
                for item in listed.get(store.group_kind, ()):
                    store.put(item)
                store.commit()

    def reflectors(self, lister: Lister) -> list[Reflector]:
        """The reflectors that keep this cache up to date, one for each list."""
        return [Reflector(lister, path, store, query=query) for path, query, store in self.sources]

    def _synced(self, resource: Resource) -> None:
        self._on_sync(resource, self.synced(resource))

    def _changed(self, resource: Resource, namespace: str | None, change: Change) -> None:
        if namespace is None:
            for key in [key for key in (*self._merged, *self._carried) if key[0] is resource]:
                self._merged.pop(key, None)
                self._carried.pop(key, None)
        elif len(self._stores[resource]) > 1:
            for key in ((resource, namespace), (resource, None)):
                _, listing = self._merged.pop(key, (None, None))
                _carry(self._carried, key, listing, change)
        self._on_change(resource)

    def synced(self, resource: Resource) -> bool:
        return all(store.synced for store in self._stores[resource])

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        """See `policies.core.facts.Cluster`. The result is the same Listing until one of its objects
        changes."""
        stores = self._stores[resource]
        if len(stores) == 1:
            return stores[0].listing(namespace) if stores[0].synced else None
        if not self.synced(resource):
            return None
        parts = tuple(store.listing(namespace) for store in stores)
        key = (resource, namespace)
        known = self._merged.get(key)
        if known is None or any(a is not b for a, b in zip(known[0], parts, strict=True)):
            merged = Listing((item for part in parts for item in part), self._carried.pop(key, None))
            if not merged:
                self._merged.pop(key, None)
                return NO_OBJECTS
            if len(self._merged) >= MERGED_KEPT:
                self._merged.clear()  # most belong to deleted namespaces
                self._carried.clear()
            known = self._merged[key] = (parts, merged)
        return known[1]


def _carry(carried: dict[K, InheritedIndices], key: K, listing: Listing | None, change: Change) -> None:
    """Record the change of a listing: the next listing takes over its indices."""
    if listing is not None:
        carried[key] = InheritedIndices(listing)
    if key in carried and not carried[key].add(*change):
        del carried[key]


def _ignore(*_: object) -> None:
    pass


Derive: TypeAlias = Callable[[Json], object]
"""What is kept of an object instead of the fields that it follows from; None for nothing."""

_DERIVED: Final[Mapping[Resource, tuple[str, Derive]]] = {
    Resource.WORKLOADS: (CACHED_LINKS, cached_links),  # parses the commands, once per change
    Resource.DEVICE_SLICES: (OFFER, offer_of),
}
"""The derived values of resources, each with the key that keeps it."""

OnSync: TypeAlias = Callable[[Resource], None]
"""Called when `synced` changes."""
OnChange: TypeAlias = Callable[[Resource, str | None, Change], None]
"""Called with a namespace whose listing is outdated (None: all), and with the changed object."""


class _Sink:
    """The common part of the reflectors' sinks."""

    def __init__(self, resource: Resource, on_sync: OnSync, on_change: OnChange) -> None:
        self.resource, self._on_sync, self._on_change = resource, on_sync, on_change
        self.synced = False
        """Whether a list is complete and reading is still allowed."""

    def _set_synced(self, synced: bool) -> None:
        if synced is not self.synced:
            self.synced = synced
            self._on_sync(self.resource)


class Store(_Sink):
    """The trimmed objects of one kind, by namespace and name."""

    def __init__(
        self,
        known: ResourceKind,
        *,
        on_sync: OnSync = _ignore,
        on_change: OnChange = _ignore,
        on_skip: Callable[[Resource], None] = _ignore,
    ) -> None:
        super().__init__(known.resource, on_sync, on_change)
        self._known, self.kind, self._on_skip = known, known.kind, on_skip
        self._paths = tuple(tuple(path.split(".")) for path in known.fields)
        self.group_kind = known.group_kind
        self._type = {"apiVersion": known.api_version, "kind": self.kind}
        self._objects: dict[str, dict[str, Json]] = {}
        self._fresh: dict[str, dict[str, Json]] | None = None
        self._listings: dict[str | None, Listing] = {}
        self._carried: dict[str | None, InheritedIndices] = {}
        self._bytes = self._fresh_bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._objects.values()))

    def listing(self, namespace: str | None) -> Listing:
        known = self._listings.get(namespace)
        if known is None:
            carried = self._carried.pop(namespace, None)
            if namespace is None:
                every = (item for objects in self._objects.values() for item in objects.values())
                known = Listing(every, carried)
            elif namespace in self._objects:
                known = Listing(self._objects[namespace].values(), carried)
            else:
                return NO_OBJECTS
            self._listings[namespace] = known
        return known

    # --- the sink --------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._fresh, self._fresh_bytes = {}, 0

    def put(self, item: Json) -> None:
        if not self._known.includes(item):
            self.remove(item)
            return
        trimmed = self._trimmed(item)
        namespace, name = _key(trimmed)
        known = self._objects.get(namespace, {}).get(name)
        if self._known.problem(trimmed):
            self.remove(item)
            self._on_skip(self.resource)
            return
        if self._fresh is not None:
            self._count_bytes(trimmed, self._fresh.get(namespace, {}).get(name))
            self._fresh.setdefault(namespace, {})[name] = known if known == trimmed else trimmed
        elif known != trimmed:
            self._count_bytes(trimmed, known)
            self._objects.setdefault(namespace, {})[name] = trimmed
            self._invalidate(namespace, (known, trimmed))

    def commit(self) -> None:
        fresh, self._fresh = self._fresh or {}, None
        self._bytes = self._fresh_bytes
        # A kind that the cluster does not serve is listed at each retry: that must not invalidate decisions.
        if fresh != self._objects or not self.synced:
            self._objects = fresh
            self._invalidate_all()
        self._set_synced(True)

    def remove(self, item: Json) -> None:
        namespace, name = _key(item)
        objects = (self._objects if self._fresh is None else self._fresh).get(namespace)
        gone = objects.pop(name, None) if objects else None
        if gone is not None:
            self._count_bytes(None, gone)
            if not objects:
                del (self._objects if self._fresh is None else self._fresh)[namespace]
            if self._fresh is None:
                self._invalidate(namespace, (gone, None))

    def lost(self, error: ApiError) -> None:
        self._fresh = None
        if error.status == 404 and self._known.optional:
            self.begin()
            self.commit()
            return
        if error.reason == TOO_LARGE:
            self._objects, self._bytes = {}, 0
            self._invalidate_all()
        if error.reason == TOO_LARGE or error.status in (401, 403, 404):
            self._set_synced(False)

    def _count_bytes(self, put: Json | None, gone: Json | None) -> None:
        """Add the bytes of an object and subtract those of its predecessor. ApiError above the limit."""
        more = (_bytes_of(put) if put else 0) - (_bytes_of(gone) if gone else 0)
        if self._fresh is None:
            total = self._bytes = self._bytes + more
        else:
            total = self._fresh_bytes = self._fresh_bytes + more
        if put and total > STORE_BYTES:
            what = f"the kept fields of {self.kind}s need more than {STORE_BYTES >> 20} MiB"
            raise ApiError(0, TOO_LARGE, f"{what}, so none is kept")

    def _invalidate(self, namespace: str, change: Change) -> None:
        for key in (namespace, None):
            _carry(self._carried, key, self._listings.pop(key, None), change)
        if namespace not in self._objects:
            self._carried.pop(namespace, None)
        self._on_change(self.resource, namespace, change)

    def _invalidate_all(self) -> None:
        self._listings.clear()
        self._carried.clear()
        self._on_change(self.resource, None, (None, None))

    def _trimmed(self, item: Json) -> Json:
        metadata = item.get("metadata") or {}
        trimmed: Json = {"metadata": {"name": metadata.get("name", "")}}
        if "namespace" in metadata:
            trimmed["metadata"]["namespace"] = metadata["namespace"]
        for path in self._paths:
            if path == ("kind",):
                trimmed["kind"] = self.kind  # items of a list carry no kind
                continue
            if len(path) > 1 and path[-2].endswith("[]"):
                self._keep_texts(item, path, trimmed)
                continue
            value = dig(item, *path)
            if value is not None:
                _set(trimmed, path, value)
        if self.resource in _DERIVED:
            key, derive = _DERIVED[self.resource]
            try:
                derived = derive({**item, **self._type})  # items of a list have no kind
            except WrongTypeError:  # in a field that is not kept
                derived = None
            if derived is not None:
                trimmed[key] = derived
        return trimmed

    def _keep_texts(self, item: Json, path: tuple[str, ...], trimmed: Json) -> None:
        """Store the texts under one key of a list of maps."""
        listed = (*path[:-2], path[-2].removesuffix("[]"))
        texts = filter(None, (text(each, path[-1]) for each in maps(item, *listed)))
        stored = [{path[-1]: each} for each in texts]
        if stored:
            _set(trimmed, listed, stored)


class ObservedStarts(_Sink):
    """The observed starts of the leader's ConfigMap, by namespace, as far as budgets depend on them.

    The listing of a namespace changes only if a budget could change, so that other writes of the leader do
    not invalidate remembered decisions.
    """

    kind = OBSERVED

    def __init__(self, *, on_sync: OnSync = _ignore, on_change: OnChange = _ignore) -> None:
        super().__init__(Resource.OBSERVED, on_sync, on_change)
        self._texts: dict[str, object] = {}
        self._listings: dict[str | None, Listing] = {}
        self._listed = False

    def listing(self, namespace: str | None) -> Listing:
        return self._listings.get(namespace, NO_OBJECTS)

    def begin(self) -> None:
        self._listed = False

    def put(self, item: Json) -> None:
        if text(item, "metadata", "name") == OBSERVED:
            self._listed = True
            self._read(mapping(item, "data"))

    def commit(self) -> None:
        if not self._listed:
            self._read({})
        self._set_synced(True)

    def remove(self, item: Json) -> None:
        """Keep the values: the leader writes the ConfigMap again."""

    def lost(self, error: ApiError) -> None:
        if error.status in (401, 403, 404):
            self._read({})
            self._set_synced(False)

    def _read(self, data: Mapping[str, object]) -> None:
        before, self._texts = self._texts, dict(data)
        for namespace in {*before, *data}:
            if before.get(namespace) == data.get(namespace):
                continue
            old = next(iter(self.listing(namespace)), None)
            new = trimmed(namespace, data.get(namespace))
            if new == old:
                continue
            if new is None:
                del self._listings[namespace]
            else:
                self._listings[namespace] = Listing([new])
            self._on_change(self.resource, namespace, (old, new))


def _bytes_of(value: Any) -> int:
    """The approximate memory of a value."""
    if isinstance(value, dict):
        return sum(_bytes_of(key) + _bytes_of(item) for key, item in value.items())
    if isinstance(value, list):
        return sum(map(_bytes_of, value))
    if isinstance(value, CachedLinks):
        return _ENTRY_BYTES + len(value.links) * _LINK_BYTES
    return _ENTRY_BYTES + (getsizeof(value) if isinstance(value, str) else 0)


def _set(target: Json, path: tuple[str, ...], value: object) -> None:
    for step in path[:-1]:
        target = target.setdefault(step, {})
    target[path[-1]] = value


def _key(item: Json) -> tuple[str, str]:
    metadata = item.get("metadata") or {}
    return metadata.get("namespace", ""), metadata.get("name", "")


# --- the oldest kubelet ---------------------------------------------------------------------------


SETTLE_SECONDS: Final = 1.0
"""The delay after a change of nodes, so that a burst of changes is one report."""

log = structlog.get_logger()


class OldestKubelet:
    """Reports the version of the oldest kubelet when it changes."""

    def __init__(self, cluster: Cluster, show: Callable[[int], None]) -> None:
        """`show` is called with the minor version, or 0 if it is unknown."""
        self._cluster, self._show = cluster, show
        self._known: tuple[int, int] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def changed(self, resource: Resource) -> None:
        """Objects of a resource changed, or whether the resource is known."""
        if resource is Resource.NODES and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._report)

    def _report(self) -> None:
        self._timer = None
        facts = Facts(cluster=self._cluster)
        oldest = facts.oldest_kubelet()
        if oldest == self._known:
            return
        self._known = oldest
        self._show(oldest[1] if oldest else 0)
        if oldest is None:
            log.info("oldest kubelet unknown")
        else:
            log.info("oldest kubelet", version=f"{oldest[0]}.{oldest[1]}", node=facts.oldest_node())
