"""The Leases that hold the records of worker names, all in the webhook's own namespace.

They are there, and not next to the workers, because RBAC can't select "these Leases" in every namespace: an
account that may write them everywhere may take any leader election. An owner reference can't cross
namespaces, so no garbage collector takes them with their cluster: `Sweep` does.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import time
from collections.abc import AsyncIterator
from typing import Final, Protocol

import structlog

from policies.core.annotations import WORKER_NAMES, WORKER_NAMES_OWNER
from policies.kube.json import Json, mapping, text
from policies.kube.metadata import annotations_of
from policies.worker_names.workers import AllocationRecord, Owner, Worker
from webhook.kube.errors import ApiError
from webhook.kube.leases import LEASES, renewal, renewed_at

log = structlog.get_logger()

LONGEST_NAME: Final = 253

SWEEP_SECONDS: Final = 3600.0
"""Between two sweeps of one process."""
IDLE_SECONDS: Final = 3600.0
"""If a Lease was written since, the sweep asks nothing about it."""
PACE_SECONDS: Final = 0.05
"""Between two questions of a sweep: some thousand clusters must not be one burst."""


class NoScale(Exception):
    """The controller of a labelled pod has no scale subresource: the wanted number is unknown."""


def lease_name(worker: Worker) -> str:
    """`<namespace>-<owner>-<group>-<hash>`, at most 253 characters.

    The hash separates names that are otherwise equal; of namespace, owner's UID, head or not, and group.
    """
    parts = [worker.namespace, worker.owner.uid, worker.head, worker.group]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
    group = "head" if worker.head else worker.group
    return _named(f"{worker.namespace}-{worker.owner.name}-{group}", digest, LONGEST_NAME)


def earlier_lease_name(worker: Worker) -> str:
    """The name of the group's Lease in the workers' namespace, where releases up to 0.1 kept it."""
    group = "head" if worker.head else worker.group
    digest = hashlib.sha256(f"{worker.owner.uid}\0{worker.head}\0{worker.group}".encode()).hexdigest()[:10]
    return _named(f"{worker.owner.name}-{group}", digest, 63)


def _named(stem: str, digest: str, longest: int) -> str:
    stem = re.sub(r"[^a-z0-9-]", "-", stem.lower()).strip("-")
    return f"{stem[: longest - len(digest) - 1].rstrip('-')}-{digest}"


def new_lease(name: str) -> Json:
    """The first Lease of a group, not yet in a namespace."""
    return {
        "apiVersion": LEASES,
        "kind": "Lease",
        "metadata": {"name": name, "labels": {WORKER_NAMES: "record"}},
    }


def written(lease: Json, worker: Worker, record: AllocationRecord, identity: str) -> Json:
    """A copy of the Lease with another record, its resourceVersion and all that is not ours kept."""
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
    """The record in a Lease; an empty one where there is none."""
    return AllocationRecord.load(annotations_of(lease or {}).get(WORKER_NAMES))


# --- Leases whose owner is gone --------------------------------------------------------------------------


class Records(Protocol):
    """What a sweep asks of the API server; every method may raise ApiError."""

    def now(self) -> float: ...

    def leases(self) -> AsyncIterator[Json]:
        """All Leases in our namespace that hold a record."""
        ...

    async def owner(self, owner: Owner, namespace: str) -> Json | None:
        """The live owner or its Scale. NoScale if it has none."""
        ...

    async def delete_lease(self, lease: Json) -> bool:
        """False if it is no longer the one that was read."""
        ...


class Sweep:
    """Deletes the Leases of owners that are gone.

    It is safe at any time and from every replica at once: an owner's UID never comes back, so its
    record is not needed any more. A Lease that is written meanwhile is another one, which stays. If a record
    were lost anyway, the next one has a new epoch, so that no name is given out twice.
    """

    def __init__(self, records: Records, *, pace: float = PACE_SECONDS) -> None:
        self._records, self._pace = records, pace

    async def run(self) -> None:
        """Sweep now and then until cancelled."""
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
        """How many were deleted. A Lease that can't be judged stays. ApiError if they can't be listed."""
        swept = 0
        async for lease in self._records.leases():
            try:
                if self._idle(lease) and await self._orphaned(lease):
                    swept += await self._records.delete_lease(lease)
            except ApiError as error:
                log.info("worker names: Lease kept", lease=text(lease, "metadata", "name"), error=str(error))
        return swept

    def _idle(self, lease: Json) -> bool:
        renewed = renewed_at(lease)
        return renewed is not None and self._records.now() - renewed > IDLE_SECONDS

    async def _orphaned(self, lease: Json) -> bool:
        """Whether the owner is surely gone; a Lease without an owner stays."""
        try:
            said = json.loads(annotations_of(lease).get(WORKER_NAMES_OWNER, ""))
        except (ValueError, TypeError, RecursionError):
            return False
        owner = Owner(*(text(said, key) for key in ("apiVersion", "kind", "name", "uid")))
        namespace = text(said, "namespace")
        if not owner.is_sound or not namespace:
            return False
        await asyncio.sleep(self._pace)
        try:
            found = await self._records.owner(owner, namespace)
        except NoScale:
            return True  # no name can be allocated for it
        return found is None or text(found, "metadata", "uid") != owner.uid
