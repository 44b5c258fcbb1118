"""Rate limits for calls, and random pauses, so that processes do not call at the same time.

The number of writes that a tenant's objects cause is limited here.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from policies.kube.json import Json
from webhook.kube.calls import Writes

Sleep = Callable[[float], Awaitable[object]]
Clock = Callable[[], float]
"""Monotonic seconds."""

_ROUNDING = 1e-9
"""Sums of fractions may end slightly below 1, and a sleep of that length would not move a clock."""


class RateLimit:
    """A token bucket: `burst` calls at once, then `per_minute`."""

    def __init__(self, burst: int, per_minute: float, clock: Clock, sleep: Sleep) -> None:
        self._burst, self._per_second = burst, per_minute / 60
        self._clock, self._sleep = clock, sleep
        self._tokens, self._filled_at = float(burst), clock()

    async def take(self) -> None:
        while True:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._per_second)
            self._filled_at = now
            if self._tokens >= 1 - _ROUNDING:
                self._tokens -= 1
                return
            await self._sleep((1 - self._tokens) / self._per_second)


class RateLimited:
    """Writes within a rate limit: each call counts."""

    def __init__(self, api: Writes, limit: RateLimit) -> None:
        self._api, self._limit = api, limit

    async def unless_conflict(
        self, method: str, path: str, body: Json, content_type: str = "application/json"
    ) -> bool:
        await self._limit.take()
        return await self._api.unless_conflict(method, path, body, content_type)


def jittered(seconds: float) -> float:
    """80 to 100 % of a pause."""
    return random.uniform(seconds * 0.8, seconds)  # noqa: S311
