"""The Lease `mlchassis-uptime`: a replica that is ready renews it, so that it shows when none was.

The replica that holds it does the work of which one is enough. Law: it is compare-and-swap, the times in it
are the API server's, and no admission waits for it. A process that could not renew it in time does not hold
it. Two holders for a moment, as while two releases serve, do the work twice and change nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import orjson
import structlog

from policies.core.annotations import OUTAGES
from policies.kube.json import Json, mapping, text
from policies.kube.metadata import annotations_of
from webhook.kube import paths
from webhook.kube.calls import Calls
from webhook.kube.errors import ApiError
from webhook.kube.leases import LEASES, renewal, renewed_at

log = structlog.get_logger()

NAME: Final = "mlchassis-uptime"
RENEW_SECONDS: Final = 10.0
UNREADY_SECONDS: Final = 1.0
LAPSED_SECONDS: Final = 25.0
"""A Lease that was not renewed for so long may be taken over."""
OUTAGES_KEPT: Final = 50
"""The newest ones."""
SAME_SECONDS: Final = 30.0
"""Outages with less than this between them are kept as one."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which no replica was ready, in seconds since the epoch."""

    begin: float
    end: float

    def covers(self, moment: float, before: float, after: float) -> bool:
        """Whether a moment is in it, `before` seconds ahead of it or `after` seconds behind it."""
        return self.begin - before <= moment <= self.end + after


class Uptime:
    """Renews the Lease while this process is ready."""

    def __init__(
        self,
        api: Calls,
        namespace: str,
        identity: str,
        ready: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`identity` differs between all processes; `clock`: seconds that only go forward."""
        self._api, self._identity, self._ready, self._clock = api, identity, ready, clock
        self._collection = paths.collection(LEASES, "leases", namespace)
        self._path = paths.one(LEASES, "leases", NAME, namespace)
        self._since: float | None = None
        self._told = False
        self._renewed: float | None = None

    @property
    def is_leader(self) -> bool:
        """Whether this process is the one that does the work of which one is enough."""
        return self._renewed is not None and self._clock() - self._renewed < LAPSED_SECONDS

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            try:
                await self.once()
                self._told = False
            except ApiError as error:
                if not self._told:  # each ten seconds would fill the log
                    log.warning("the Lease of the webhook's uptime can't be renewed", error=str(error))
                self._told = True
            # An outage is written down as soon as it is over: somebody may scan then.
            await asyncio.sleep(RENEW_SECONDS if self._ready() else UNREADY_SECONDS)

    async def once(self) -> None:
        """Renew the Lease if it is ours, or take it over if nobody renews it. Raises ApiError."""
        asked = self._clock()
        self._renewed = asked if await self._renew() else None

    async def _renew(self) -> bool:
        if not self._ready():
            self._since = None
            return False
        lease = await self._api.get(self._path)
        now = self._api.now()
        if self._since is None:
            self._since = now
        if lease is None:
            return await self._api.unless_conflict("POST", self._collection, self._written({}, now, ()))
        ours = text(lease, "spec", "holderIdentity") == self._identity
        renewed = renewed_at(lease)
        # A time in the future was written by another clock: it would keep everybody out.
        if not ours and renewed is not None and -LAPSED_SECONDS < now - renewed < LAPSED_SECONDS:
            return False
        known = outages_in(lease)
        if renewed is not None and self._since - renewed > LAPSED_SECONDS:
            known = (*known, Outage(renewed, self._since))
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
    """The recorded outages, the oldest first; pairs that somebody has spoilt are left out."""
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
