"""Connections to stores: a limited number, shared by all models."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Connections:
    """At most `limit` connections at a time. One model may use all of them. When others need some, it gives
    back those above its share at once, so a slow store holds up only its own models."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._held: Counter[int] = Counter()
        self._revocable: dict[int, list[asyncio.Timeout]] = {}
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def use(self, owner: object, *, revocable: bool = False) -> AsyncGenerator[None]:
        """A connection for an owner. The block of a `revocable` one may end early, without an exception."""
        key = id(owner)
        await self._take(key)
        lease = asyncio.timeout(None)
        try:
            async with lease:
                if revocable:
                    self._revocable.setdefault(key, []).append(lease)
                yield
        except TimeoutError:
            if not lease.expired():
                raise
        finally:
            leases = self._revocable.get(key, [])
            if lease in leases:
                leases.remove(lease)
            if not leases:
                self._revocable.pop(key, None)
            self._give_back(key)

    async def _take(self, key: int) -> None:
        if self._free:
            self._free -= 1
            self._held[key] += 1
            return
        granted = asyncio.get_running_loop().create_future()
        self._revoke(self._held[key] + sum(owner == key for owner, _ in self._waiting))
        self._waiting.append((key, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._waiting.remove((key, granted))
            else:
                self._give_back(key)
            raise

    def _revoke(self, share: int) -> None:
        """Take a connection from the model with the most, if that leaves it more than `share`."""
        leases = max(self._revocable.values(), key=len, default=[])
        if len(leases) > share + 1:
            leases.pop().reschedule(asyncio.get_running_loop().time())

    def _give_back(self, key: int) -> None:
        """Hand a connection to the waiting owner with the fewest."""
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
        waiting = [entry for entry in self._waiting if not entry[1].done()]
        if not waiting:
            self._free += 1
            return
        entry = min(waiting, key=lambda each: self._held[each[0]])
        self._waiting.remove(entry)
        self._held[entry[0]] += 1
        entry[1].set_result(None)
