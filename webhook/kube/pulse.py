"""Whether watches bring what happens, found out with the load of one short watch.

A watch may fall silent while its connection lives: a proxy holds back what it should pass on, or the other
end vanished without a word. Silence by itself means nothing, since most resources rarely change. But about
two seconds before the agreed end of a watch an API server sends a bookmark, if its resource has changed
anywhere since the watch began. So one reflector, the canary, asks for short watches. If it hears nothing, it
asks how far the API server's own cache is. If that is further, all others are watched again at once, with
short watches until the canary has no reason for doubt any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from webhook.kube.errors import ApiError

log = structlog.get_logger()

CANARY_SECONDS: Final = 20
"""How long a watch of the canary is."""
SILENT_SECONDS: Final = 10
"""How long a watch is while watches are silent: a proxy that holds everything back lets go of it at the end.
A client of an API server that sends no bookmarks pays for this all the time."""
MARGIN_SECONDS: Final = 0.25
"""How long before the agreed end of the canary's watch its bookmark must be there. Together with the end does
not count: that is how a proxy answers that holds back."""


class Pulse:
    """What the reflectors of one API server share. Without a canary, watches are never taken for silent."""

    def __init__(self) -> None:
        self.silent = False
        self._limits: set[asyncio.Timeout] = set()
        self._due: asyncio.TimerHandle | None = None
        """When the canary's watch must have brought something; None if that time has passed."""
        self._asking: set[asyncio.Task[None]] = set()

    def seconds(self, usual: int) -> int:
        """How long the next watch should be."""
        return min(usual, SILENT_SECONDS) if self.silent else usual

    @contextmanager
    def renewing(self) -> Iterator[asyncio.Timeout]:
        """A timeout for one watch; it expires when watches turn out to be silent."""
        limit = asyncio.timeout(None)
        self._limits.add(limit)
        try:
            yield limit
        finally:
            self._limits.discard(limit)

    @contextmanager
    def expecting(self, seconds: float, behind: Callable[[], Awaitable[bool]]) -> Iterator[asyncio.Timeout]:
        """A timeout for the canary's watch, which never expires: it ends soon anyway, and a proxy that holds
        everything back lets go of it then. `behind`: whether there is something that the watch should have
        brought."""

        def ask() -> None:
            self._due = None
            task = asyncio.create_task(self._ask(behind))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

        due = self._due = asyncio.get_running_loop().call_later(seconds - MARGIN_SECONDS, ask)
        try:
            yield asyncio.timeout(None)
        finally:
            due.cancel()

    def heard(self) -> None:
        """The canary's watch brought something; too late does not count."""
        if self._due is None:
            return
        self._due.cancel()
        self._trust()

    async def _ask(self, behind: Callable[[], Awaitable[bool]]) -> None:
        try:
            missed = await behind()
        except ApiError:
            return  # the reflector itself meets that error
        if missed:
            self._missed()
        else:
            self._trust()

    def _trust(self) -> None:
        if self.silent:
            log.info("watches bring what happens again")
        self.silent = False

    def _missed(self) -> None:
        if not self.silent:
            log.warning("watches are silent, watching anew", watches=len(self._limits))
        self.silent = True
        now = asyncio.get_running_loop().time()
        for limit in self._limits:
            limit.reschedule(now)
