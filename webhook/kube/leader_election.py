"""The Lease `mlchassis-uptime`: a ready replica renews it, so gaps in its renewal are outages of the webhook.

Its holder is the leader. Law: writes are compare-and-swap, all times are the API server's, and no admission
waits for the Lease. A process that could not renew it in time is not the leader. Two leaders at a time, as
during an upgrade, do work twice and have no other effect.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

import orjson
import structlog
from msgspec import Struct

from policies.core.annotations import OUTAGES
from policies.kube.json import Json, mapping, text
from policies.kube.metadata import annotations_of
from webhook.kube import paths
from webhook.kube.calls import ApiError, Calls, Clock
from webhook.kube.times import LEASES, renewal, renewed_at

log = structlog.get_logger()

NAME: Final = "mlchassis-uptime"
RENEW_SECONDS: Final = 10.0
UNREADY_SECONDS: Final = 1.0
LAPSED_SECONDS: Final = 25.0
"""After so long without a renewal another replica takes the Lease."""
OUTAGES_KEPT: Final = 50
"""The number of recorded outages, the newest ones."""
SAME_SECONDS: Final = 30.0
"""Outages with a shorter gap between them are merged."""


class Outage(Struct, frozen=True):
    """A period without a ready replica, in seconds since the epoch."""

    begin: float
    end: float

    def covers(self, moment: float, before: float, after: float) -> bool:
        """Whether a moment is in the outage, at most `before` seconds before it or `after` seconds after
        it."""
        return self.begin - before <= moment <= self.end + after


class UptimeLease:
    """Renews the Lease while this process is ready; its holder leads."""

    def __init__(
        self,
        api: Calls,
        namespace: str,
        identity: str,
        ready: Callable[[], bool],
        clock: Clock = time.monotonic,
    ) -> None:
        """`identity` is unique for each process."""
        self._api, self._identity, self._ready, self._clock = api, identity, ready, clock
        self._collection = paths.collection(LEASES, "leases", namespace)
        self._path = paths.one(LEASES, "leases", NAME, namespace)
        self._ready_since: float | None = None
        self._logged = False
        self._renewed: float | None = None

    @property
    def is_leader(self) -> bool:
        """Whether this process holds the Lease."""
        return self._renewed is not None and self._clock() - self._renewed < LAPSED_SECONDS

    async def run(self) -> None:
        while True:
            try:
                await self.once()
                self._logged = False
            except ApiError as error:
                if not self._logged:
                    log.warning("the Lease of the webhook's uptime can't be renewed", error=str(error))
                self._logged = True
            # Record an outage as soon as it is over: a scan may need it.
            await asyncio.sleep(RENEW_SECONDS if self._ready() else UNREADY_SECONDS)

    async def once(self) -> None:
        """Renew the Lease, or take it if nobody renews it. Raises ApiError."""
        started = self._clock()
        self._renewed = started if await self._renew() else None

    async def _renew(self) -> bool:
        if not self._ready():
            self._ready_since = None
            return False
        lease = await self._api.get(self._path)
        now = self._api.now()
        if self._ready_since is None:
            self._ready_since = now
        if lease is None:
            return await self._api.unless_conflict("POST", self._collection, self._written({}, now, ()))
        ours = text(lease, "spec", "holderIdentity") == self._identity
        renewed = renewed_at(lease)
        # A renewal in the future is from another clock: nobody could take the Lease.
        if not ours and renewed is not None and -LAPSED_SECONDS < now - renewed < LAPSED_SECONDS:
            return False
        known = outages_in(lease)
        if renewed is not None and self._ready_since - renewed > LAPSED_SECONDS:
            known = (*known, Outage(renewed, self._ready_since))
        return await self._api.unless_conflict("PUT", self._path, self._written(lease, now, known))

    def _written(self, lease: Json, now: float, outages: Iterable[Outage]) -> Json:
        kept = [[round(each.begin, 3), round(each.end, 3)] for each in _merged(outages)]
        metadata = {**mapping(lease, "metadata"), "name": NAME}
        annotations = {**annotations_of(lease), OUTAGES: orjson.dumps(kept).decode()}
        spec = {**mapping(lease, "spec"), **renewal(self._identity, now)}
        spec["leaseDurationSeconds"] = int(LAPSED_SECONDS)
        head = {"apiVersion": LEASES, "kind": "Lease"}
        return {**lease, **head, "metadata": {**metadata, "annotations": annotations}, "spec": spec}


def outages_in(lease: Json) -> tuple[Outage, ...]:
    """The recorded outages, the oldest first, without malformed ones."""
    try:
        read = orjson.loads(annotations_of(lease).get(OUTAGES, "[]"))
    except (ValueError, TypeError):
        return ()
    found = []
    for pair in read if isinstance(read, list) else ():
        match pair:
            case [int() | float() as begin, int() | float() as end] if begin <= end:
                found.append(Outage(float(begin), float(end)))
    return _merged(found)


def _merged(outages: Iterable[Outage]) -> tuple[Outage, ...]:
    found: list[Outage] = []
    for each in sorted(outages, key=lambda outage: outage.begin):
        if found and each.begin - found[-1].end < SAME_SECONDS:
            found[-1] = Outage(found[-1].begin, max(found[-1].end, each.end))
        else:
            found.append(each)
    return tuple(found[-OUTAGES_KEPT:])
