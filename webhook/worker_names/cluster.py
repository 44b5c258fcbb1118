"""What the allocation of worker names reads from and writes to the API server.

Law: every list and get here is a consistent read (no resourceVersion is given), every write of a Lease is
compare-and-swap, and on behalf of a pod only its owner and the pods of its namespace are read.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing

from policies.core.annotations import WORKER_NAMES
from policies.kube.json import Json, maps, text
from policies.worker_names.workers import Owner
from webhook.kube import paths
from webhook.kube.api import ApiServer, items_of
from webhook.kube.errors import ApiError
from webhook.kube.leases import LEASES
from webhook.worker_names.endpoint import Listed
from webhook.worker_names.leases import NoScale

METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
HISTORY_SECONDS = 0.3
"""How long the API server gets to replay what happened to the pods since a name was given."""
SCALABLE_KEPT = 256
"""Kinds whose resource is remembered: pods name them, so there may be as many as somebody likes."""


class LiveWorkers:
    """The `Workers` and the `Records` of a running webhook; `namespace` is the one of its Leases."""

    def __init__(self, api: ApiServer, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._scalable: OrderedDict[tuple[str, str], tuple[str, bool]] = OrderedDict()
        self._may_read_earlier = True

    def now(self) -> float:
        return self._api.now()

    async def owner(self, owner: Owner, namespace: str) -> Json | None:
        """The live RayCluster, or the Scale of any other controller; it carries the owner's UID."""
        if owner.is_ray:
            return await self._api.get(paths.one(owner.api_version, "rayclusters", owner.name, namespace))
        resource, namespaced = await self._resource(owner)
        namespace = namespace if namespaced else ""
        return await self._api.get(paths.one(owner.api_version, resource, owner.name, namespace, "scale"))

    async def _resource(self, owner: Owner) -> tuple[str, bool]:
        """The owner's resource as API discovery shows it, and whether it is namespaced.

        NoScale if it has no scale subresource.
        """
        key = (owner.api_version, owner.kind)
        if key not in self._scalable:
            served = maps(await self._api.get(paths.root(owner.api_version)), "resources")
            names = {text(resource, "name") for resource in served}
            for resource in served:
                name = text(resource, "name")
                if resource.get("kind") == owner.kind and f"{name}/scale" in names:
                    self._scalable[key] = name, resource.get("namespaced") is not False
                    break
            else:
                raise NoScale(f"{owner.kind} in {owner.api_version} has no scale subresource")
            if len(self._scalable) > SCALABLE_KEPT:
                self._scalable.popitem(last=False)
        self._scalable.move_to_end(key)
        return self._scalable[key]

    async def pods(self, namespace: str, labels: Mapping[str, str], *, phases: bool = True) -> Listed:
        # Of 500 workers: 2 MB and gzip on both sides as usual, a quarter of the time like this.
        headers = {"Accept-Encoding": "identity"} | ({} if phases else {"Accept": METADATA_ONLY})
        path, query = paths.collection("v1", "pods", namespace), _selecting(labels)
        answer = await self._api.call("GET", path, query=query, headers=headers)
        return Listed(items_of(answer), text(answer, "metadata", "resourceVersion"))

    async def created(
        self, namespace: str, labels: Mapping[str, str], since: str, names: frozenset[str]
    ) -> frozenset[str]:
        """Those of the names under which a pod was created after `since`, as far as that is known.

        The API server replays the events of the last minute or so; older ones (410) stay unknown.
        """
        seen: set[str] = set()
        path = paths.collection("v1", "pods", namespace)
        try:
            async with (
                asyncio.timeout(HISTORY_SECONDS),
                aclosing(self._api.watch(path, _selecting(labels), since, seconds=2)) as events,
            ):
                async for event in events:
                    seen.add(text(event, "object", "metadata", "name"))
                    if names <= seen:
                        break
        except (TimeoutError, ApiError):
            pass
        return names & seen

    async def owner_and_lease(
        self, owner: Owner, namespace: str, lease: str
    ) -> tuple[Json | None, Json | None]:
        path = paths.one(LEASES, "leases", lease, self._namespace)
        return await asyncio.gather(self.owner(owner, namespace), self._api.get(path))

    async def earlier_lease(self, namespace: str, name: str) -> Json | None:
        if not self._may_read_earlier:
            return None
        try:
            return await self._api.get(paths.one(LEASES, "leases", name, namespace))
        except ApiError as error:
            if error.status != 403:
                raise
            # As with the component only-this-release, and in the chart.
            self._may_read_earlier = False
            return None

    async def create_lease(self, lease: Json) -> bool:
        """False if there is one already."""
        lease = {**lease, "metadata": {**lease["metadata"], "namespace": self._namespace}}
        path = paths.collection(LEASES, "leases", self._namespace)
        return await self._api.unless_conflict("POST", path, lease)

    async def replace_lease(self, lease: Json) -> bool:
        """False if it is no longer the one that was read."""
        return await self._api.unless_conflict("PUT", self._path(lease), lease)

    async def delete_lease(self, lease: Json) -> bool:
        """False if it is no longer the one that was read."""
        unchanged = {"resourceVersion": lease["metadata"]["resourceVersion"]}
        return await self._api.unless_conflict("DELETE", self._path(lease), {"preconditions": unchanged})

    async def leases(self) -> AsyncIterator[Json]:
        path = paths.collection(LEASES, "leases", self._namespace)
        async for lease in self._api.objects(path, _selecting({WORKER_NAMES: "record"})):
            yield lease

    def _path(self, lease: Json) -> str:
        return paths.one(LEASES, "leases", lease["metadata"]["name"], self._namespace)

    async def unless_conflict(
        self, method: str, path: str, body: Json, content_type: str = "application/json"
    ) -> bool:
        return await self._api.unless_conflict(method, path, body, content_type)


def _selecting(labels: Mapping[str, str]) -> dict[str, str]:
    return {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())}
