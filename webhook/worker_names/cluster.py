"""The requests of worker names to the API server, the Leases with their records, and their deletion.

Law: every list and get is a consistent read (without resourceVersion), every write of a Lease is a
compare-and-swap, and for a pod only its owner and the pods of its namespace are read.

All Leases are in the webhook's own namespace, because RBAC cannot select "these Leases" in every namespace:
an account that may write all Leases may take over any leader election.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Final

import structlog
from msgspec import Struct

from policies.core.annotations import WORKER_NAMES, WORKER_NAMES_OWNER
from policies.kube.json import Json, mapping, maps, text
from policies.kube.metadata import annotations_of
from policies.worker_names.workers import AllocationRecord, Worker, WorkerOwner
from webhook.kube import paths
from webhook.kube.api import ApiServer, items_of
from webhook.kube.calls import ApiError
from webhook.kube.times import LEASES, renewal, renewed_at

log = structlog.get_logger()

METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
HISTORY_SECONDS = 0.3
"""The time for reading the events of the pods since a name was given."""
SCALABLE_KEPT = 256
"""The number of kinds in the cache. Any pod can name a kind."""

SWEEP_SECONDS: Final = 3600.0
"""The maximum time between two sweeps of a process."""
IDLE_SECONDS: Final = 3600.0
"""Leases that were written more recently are not checked."""
PACE_SECONDS: Final = 0.05
"""The pause between two requests of a sweep, so that thousands of clusters are not one burst."""
MAX_NAME_LENGTH: Final = 253


class NoScale(Exception):
    """The controller of a labelled pod has no scale subresource, so the desired number is unknown."""


class Listed(Struct, frozen=True):
    """A consistent list of pods with its resourceVersion."""

    pods: Sequence[Json]
    version: str


class LiveWorkers:
    """The live state of the cluster. Every method may raise ApiError."""

    def __init__(self, api: ApiServer, namespace: str) -> None:
        """`namespace` is that of the Leases."""
        self._api, self._namespace = api, namespace
        self._scalable: OrderedDict[tuple[str, str], tuple[str, bool]] = OrderedDict()
        self._may_read_earlier = True

    def now(self) -> float:
        """Seconds since the epoch by a clock that all replicas share. It may lag, but not lead."""
        return self._api.now()

    async def owner(self, owner: WorkerOwner, namespace: str) -> Json | None:
        """The live RayCluster, or the Scale of any other controller, with the owner's UID. Raises NoScale."""
        if owner.is_ray:
            return await self._api.get(paths.one(owner.api_version, "rayclusters", owner.name, namespace))
        resource, namespaced = await self._resource(owner)
        namespace = namespace if namespaced else ""
        return await self._api.get(paths.one(owner.api_version, resource, owner.name, namespace, "scale"))

    async def _resource(self, owner: WorkerOwner) -> tuple[str, bool]:
        """The owner's resource in API discovery, and whether it is namespaced. Raises NoScale."""
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
        """A consistent list; without `phases`, of the pods' metadata only."""
        # Without gzip, 500 workers (2 MB) take a quarter of the time.
        headers = {"Accept-Encoding": "identity"} | ({} if phases else {"Accept": METADATA_ONLY})
        path, query = paths.collection("v1", "pods", namespace), _selecting(labels)
        answer = await self._api.call("GET", path, query=query, headers=headers)
        return Listed(items_of(answer), text(answer, "metadata", "resourceVersion"))

    async def created(
        self, namespace: str, labels: Mapping[str, str], since: str, names: frozenset[str]
    ) -> frozenset[str]:
        """The names of pods that were certainly created after the resourceVersion `since`. The API server
        keeps events for about a minute; older ones (410) are unknown."""
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
        self, owner: WorkerOwner, namespace: str, lease: str
    ) -> tuple[Json | None, Json | None]:
        """The result of `owner`, and the Lease of that name if there is one, read in any order."""
        path = paths.one(LEASES, "leases", lease, self._namespace)
        return await asyncio.gather(self.owner(owner, namespace), self._api.get(path))

    async def earlier_lease(self, namespace: str, name: str) -> Json | None:
        """The Lease of an earlier release in the workers' namespace; None without the right to read it."""
        if not self._may_read_earlier:
            return None
        try:
            return await self._api.get(paths.one(LEASES, "leases", name, namespace))
        except ApiError as error:
            if error.status != 403:
                raise
            # The component only-this-release and the chart have no such right.
            self._may_read_earlier = False
            return None

    async def create_lease(self, lease: Json) -> bool:
        """False if there is one already."""
        lease = {**lease, "metadata": {**lease["metadata"], "namespace": self._namespace}}
        path = paths.collection(LEASES, "leases", self._namespace)
        return await self._api.unless_conflict("POST", path, lease)

    async def replace_lease(self, lease: Json) -> bool:
        """Compare-and-swap by resourceVersion; False if the Lease has changed since it was read."""
        return await self._api.unless_conflict("PUT", self._path(lease), lease)

    async def delete_lease(self, lease: Json) -> bool:
        """False if the Lease has changed since it was read."""
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


class Sweep:
    """Deletes the Leases of owners that are gone. No garbage collector does, because owner references do not
    work across namespaces.

    All replicas may sweep at the same time: the UID of a deleted owner is never used again, and a Lease that
    changes during the sweep stays. After a lost record the next one has a new epoch, so no name is given
    twice.
    """

    def __init__(self, workers: LiveWorkers, *, pace: float = PACE_SECONDS) -> None:
        self._workers, self._pace = workers, pace

    async def run(self) -> None:
        """Sweep at random intervals until cancelled."""
        while True:
            await asyncio.sleep(random.uniform(SWEEP_SECONDS / 2, SWEEP_SECONDS))  # noqa: S311
            try:
                swept = await self.once()
            except ApiError as error:
                log.warning("worker names: the Leases can't be swept", error=str(error))
            else:
                if swept:
                    log.info("worker names: Leases of owners that are gone deleted", leases=swept)

    async def once(self) -> int:
        """Returns the number of deleted Leases; those with an unknown owner stay. Raises ApiError."""
        swept = 0
        async for lease in self._workers.leases():
            try:
                if self._idle(lease) and await self._orphaned(lease):
                    swept += await self._workers.delete_lease(lease)
            except ApiError as error:
                log.info("worker names: Lease kept", lease=text(lease, "metadata", "name"), error=str(error))
        return swept

    def _idle(self, lease: Json) -> bool:
        renewed = renewed_at(lease)
        return renewed is not None and self._workers.now() - renewed > IDLE_SECONDS

    async def _orphaned(self, lease: Json) -> bool:
        """Whether the owner is certainly gone."""
        try:
            reference = json.loads(annotations_of(lease).get(WORKER_NAMES_OWNER, ""))
        except (ValueError, TypeError, RecursionError):
            return False
        owner = WorkerOwner(*(text(reference, key) for key in ("apiVersion", "kind", "name", "uid")))
        namespace = text(reference, "namespace")
        if not owner.is_sound or not namespace:
            return False
        await asyncio.sleep(self._pace)
        try:
            found = await self._workers.owner(owner, namespace)
        except NoScale:
            return True  # no name can be allocated for it
        return found is None or text(found, "metadata", "uid") != owner.uid


def _selecting(labels: Mapping[str, str]) -> dict[str, str]:
    return {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())}


# --- Leases ------------------------------------------------------------------------------------------


def lease_name(worker: Worker) -> str:
    """`<namespace>-<owner>-<group>-<hash>`, at most 253 characters.

    The hash of namespace, owner's UID, head or not, and group makes it unique.
    """
    parts = [worker.namespace, worker.owner.uid, worker.head, worker.group]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
    group = "head" if worker.head else worker.group
    return _named(f"{worker.namespace}-{worker.owner.name}-{group}", digest, MAX_NAME_LENGTH)


def earlier_lease_name(worker: Worker) -> str:
    """The name of the group's Lease in the workers' namespace, where releases up to 0.1 kept it."""
    group = "head" if worker.head else worker.group
    digest = hashlib.sha256(f"{worker.owner.uid}\0{worker.head}\0{worker.group}".encode()).hexdigest()[:10]
    return _named(f"{worker.owner.name}-{group}", digest, 63)


def _named(stem: str, digest: str, longest: int) -> str:
    stem = re.sub(r"[^a-z0-9-]", "-", stem.lower()).strip("-")
    return f"{stem[: longest - len(digest) - 1].rstrip('-')}-{digest}"


def new_lease(name: str) -> Json:
    """A new Lease, without a namespace."""
    return {
        "apiVersion": LEASES,
        "kind": "Lease",
        "metadata": {"name": name, "labels": {WORKER_NAMES: "record"}},
    }


def with_record(lease: Json, worker: Worker, record: AllocationRecord, identity: str) -> Json:
    """A copy of the Lease with another record. All other fields stay."""
    owner = worker.owner
    ours = {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "namespace": worker.namespace,
        "name": owner.name,
        "uid": owner.uid,
    }
    annotations = {**annotations_of(lease), WORKER_NAMES: record.dump(), WORKER_NAMES_OWNER: json.dumps(ours)}
    spec = {**mapping(lease, "spec"), **renewal(identity, time.time())}
    return {**lease, "metadata": {**lease["metadata"], "annotations": annotations}, "spec": spec}


def record_of(lease: Json | None) -> AllocationRecord:
    """The record in a Lease; empty if there is none."""
    return AllocationRecord.load(annotations_of(lease or {}).get(WORKER_NAMES))
