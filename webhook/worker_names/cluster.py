"""What the allocation of worker names reads from and writes to the API server.

Law: every list and get here is a consistent read (no resourceVersion is given), every write of a Lease is
compare-and-swap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from urllib.parse import quote

from policies.kube.json import Json, maps, text
from policies.worker_names.workers import Owner
from webhook.kube.api import ApiError, ApiServer, namespaced
from webhook.worker_names.endpoint import Listed, NoScale

LEASES = "coordination.k8s.io/v1"
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
HISTORY_SECONDS = 0.3
"""How long the API server gets to replay what happened to the pods since a name was given."""


class LiveWorkers:
    """The `names.Workers` of a running webhook."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._scalable: dict[tuple[str, str], Json] = {}

    def now(self) -> float:
        return self._api.now()

    async def owner(self, owner: Owner, namespace: str) -> Json | None:
        """The live RayCluster, or the Scale of any other controller; it carries the owner's UID."""
        if owner.is_ray:
            return await self._api.get(_path(owner.api_version, namespace, "rayclusters", owner.name))
        resource = await self._resource(owner)
        namespace = "" if resource.get("namespaced") is False else namespace
        path = _path(owner.api_version, namespace, text(resource, "name"), owner.name)
        return await self._api.get(f"{path}/scale")

    async def _resource(self, owner: Owner) -> Json:
        """The owner's resource as API discovery shows it. NoScale if it has no scale subresource."""
        key = (owner.api_version, owner.kind)
        if key not in self._scalable:
            root = "/apis/" if "/" in owner.api_version else "/api/"
            served = maps(await self._api.get(root + owner.api_version), "resources")
            names = {text(resource, "name") for resource in served}
            for resource in served:
                if resource.get("kind") == owner.kind and f"{text(resource, 'name')}/scale" in names:
                    self._scalable[key] = resource
                    break
            else:
                raise NoScale(f"{owner.kind} in {owner.api_version} has no scale subresource")
        return self._scalable[key]

    async def pods(self, namespace: str, labels: Mapping[str, str], *, phases: bool = True) -> Listed:
        # Of 500 workers: 2 MB and gzip on both sides as usual, a quarter of the time like this.
        headers = {"Accept-Encoding": "identity"} | ({} if phases else {"Accept": METADATA_ONLY})
        path, query = namespaced("pods", namespace), _selecting(labels)
        answer = await self._api.call("GET", path, query=query, headers=headers)
        return Listed(maps(answer, "items"), text(answer, "metadata", "resourceVersion"))

    async def created(
        self, namespace: str, labels: Mapping[str, str], since: str, names: frozenset[str]
    ) -> frozenset[str]:
        """Those of the names under which a pod was created after `since`, as far as that can be told.

        The API server replays the events of the last minute or so; what it no longer has (410) is not told.
        """
        seen: set[str] = set()
        path = namespaced("pods", namespace)
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
        path = _path(LEASES, namespace, "leases", lease)
        return await asyncio.gather(self.owner(owner, namespace), self._api.get(path))

    async def create_lease(self, lease: Json) -> bool:
        """False if there is one already."""
        return await self._api.unless_conflict(
            "POST", _path(LEASES, lease["metadata"]["namespace"], "leases"), lease
        )

    async def replace_lease(self, lease: Json) -> bool:
        """False if it is no longer the one that was read."""
        metadata = lease["metadata"]
        return await self._api.unless_conflict(
            "PUT", _path(LEASES, metadata["namespace"], "leases", metadata["name"]), lease
        )

    async def create_event(self, event: Json) -> bool:
        return await self._api.create_event(event)

    async def patch_event(self, namespace: str, name: str, fields: Json) -> None:
        await self._api.patch_event(namespace, name, fields)


def _path(api_version: str, namespace: str, resource: str, name: str = "") -> str:
    """The path of a resource, or of one object of it; `namespace` is empty for one that has none."""
    path = ("/apis/" if "/" in api_version else "/api/") + api_version
    path += f"/namespaces/{quote(namespace, safe='')}/{resource}" if namespace else f"/{resource}"
    return f"{path}/{quote(name, safe='')}" if name else path


def _selecting(labels: Mapping[str, str]) -> dict[str, str]:
    return {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())}
