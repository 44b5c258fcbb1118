"""Watch caches that are filled as reflectors fill them."""

from __future__ import annotations

from policies.core.resources import Resource, resource_kinds
from policies.kube.json import Json
from webhook.kube.caches import ClusterCache, Store


def fill(store: Store, *items: Json) -> None:
    """List the items into a store."""
    store.begin()
    for item in items:
        store.put(item)
    store.commit()


def stores_of(cache: ClusterCache) -> dict[str, Store]:
    """The stores by kind; of a kind in several API versions, the last one."""
    return {store.kind: store for _, _, store in cache.sources if isinstance(store, Store)}


def filled(*objects: Json) -> ClusterCache:
    """A cache after the first lists, whose items have neither apiVersion nor kind."""
    cache = ClusterCache()
    for _, _, store in cache.sources:
        store.begin()
        for obj in objects:
            if obj.get("kind") == store.kind:
                store.put({key: value for key, value in obj.items() if key not in ("apiVersion", "kind")})
        store.commit()
    return cache


def service_store() -> Store:
    """An empty store of Services."""
    return Store(next(known for known in resource_kinds() if known.resource is Resource.SERVICES))
