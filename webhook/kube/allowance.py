"""When calls may be made: a few at once and so many a minute, and not those of all processes together.

What a tenant's objects make the webhook write is bounded here, whatever they are.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from policies.kube.json import Json
from webhook.kube.calls import Writes

Sleep = Callable[[float], Awaitable[object]]


class Allowance:
    """`burst` calls at once, and `per_minute` from then on."""

    def __init__(self, burst: int, per_minute: float, clock: Callable[[], float], sleep: Sleep) -> None:
        """`clock`: seconds that only go forward."""
        self._burst, self._per_second = burst, per_minute / 60
        self._clock, self._sleep = clock, sleep
        self._left, self._counted_at = float(burst), clock()

    async def take(self) -> None:
        """Wait until another call may be made."""
        while True:
            now = self._clock()
            self._left = min(self._burst, self._left + (now - self._counted_at) * self._per_second)
            self._counted_at = now
            if self._left >= 1 - _ROUNDING:
                self._left -= 1
                return
            await self._sleep((1 - self._left) / self._per_second)


_ROUNDING = 1e-9
"""Sums of fractions may end a little below 1, and a sleep of so little would not move a clock."""


class Paced:
    """Writes within an allowance: each call counts."""

    def __init__(self, api: Writes, allowance: Allowance) -> None:
        self._api, self._allowance = api, allowance

    async def unless_conflict(
        self, method: str, path: str, body: Json, content_type: str = "application/json"
    ) -> bool:
        await self._allowance.take()
        return await self._api.unless_conflict(method, path, body, content_type)


def spread(seconds: float) -> float:
    """About so many seconds: processes that start together do not ask together."""
    return random.uniform(seconds * 0.8, seconds)  # noqa: S311
