"""One of the serving processes leads: it holds a Lease, and the others look at it now and then.

Law: a process that is not sure to be the leader does not lead. A write of the Lease is compare-and-swap; a
leader that could not renew it in time steps down, for any reason. Two leaders for a moment do no harm,
since each write of theirs is compare-and-swap too.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final

from policies.kube.json import Json, integer, mapping, text
from webhook.kube import paths
from webhook.kube.calls import Calls
from webhook.kube.leases import LEASES, renewal, renewed_at

LEASE: Final = "mlchassis-observer"
RENEW_SECONDS: Final = 15.0
EXPIRES_SECONDS: Final = 45
"""After which a Lease that was not renewed is free."""


class Leadership:
    """Whether this process leads."""

    def __init__(self, api: Calls, namespace: str, identity: str, clock: Callable[[], float]) -> None:
        """`identity` differs between all processes; `clock`: seconds that only go forward."""
        self._api, self._namespace, self._identity, self._clock = api, namespace, identity, clock
        self._renewed: float | None = None

    @property
    def held(self) -> bool:
        """Whether the Lease was renewed recently enough."""
        return self._renewed is not None and self._clock() - self._renewed < EXPIRES_SECONDS

    async def renew(self) -> bool:
        """Take the Lease, or renew it; whether this process leads. Raises ApiError if that is not known."""
        asked = self._clock()
        path = paths.one(LEASES, "leases", LEASE, self._namespace)
        lease = await self._api.get(path)
        if lease is None:
            collection = paths.collection(LEASES, "leases", self._namespace)
            written = await self._api.unless_conflict("POST", collection, self._held({}))
        elif self._is_free(lease):
            written = await self._api.unless_conflict("PUT", path, self._held(lease))
        else:
            written = False
        self._renewed = asked if written else None
        return written

    def step_down(self) -> None:
        """Lead no longer; the Lease runs out by itself."""
        self._renewed = None

    def _is_free(self, lease: Json) -> bool:
        holder = text(lease, "spec", "holderIdentity")
        if holder in ("", self._identity):
            return True
        renewed = renewed_at(lease)
        if renewed is None:
            return True
        lasts = min(integer(lease, "spec", "leaseDurationSeconds", default=EXPIRES_SECONDS), EXPIRES_SECONDS)
        # A time that is far ahead was written by a clock that jumped.
        return not -EXPIRES_SECONDS <= self._api.now() - renewed <= lasts

    def _held(self, lease: Json) -> Json:
        spec = {**mapping(lease, "spec"), **renewal(self._identity, self._api.now())}
        spec["leaseDurationSeconds"] = EXPIRES_SECONDS
        metadata = lease.get("metadata") or {"name": LEASE, "namespace": self._namespace}
        return {"apiVersion": LEASES, "kind": "Lease", "metadata": metadata, "spec": spec}


def spread(seconds: float) -> float:
    """About so many seconds: processes that start together do not ask together."""
    return random.uniform(seconds * 0.8, seconds)  # noqa: S311


Sleep = Callable[[float], Awaitable[object]]
