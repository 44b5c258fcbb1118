"""Whether watches bring what happens, found out without a request.

A watch may fall silent while its connection lives: a proxy holds back what it should pass on, or the other
end vanished without a word. Silence by itself means nothing, since most resources rarely change. But kubelet
renews the Lease of its node every ten seconds. So one watch, of the Lease of the webhook's own node, always
has something to bring (`webhook.kube.heartbeat`). While it does, the other watches are long. If it is late
although the Lease was renewed, all watches are renewed at once, and are short until the Lease's watch brings
events again. Where no such Lease can be read, watches are as short as their reflectors want them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog

log = structlog.get_logger()

SHORT_SECONDS: Final = 20
"""The length of an urgent watch while there is no heartbeat."""
SILENT_SECONDS: Final = 10
"""How long a watch is while watches are silent: a proxy that holds everything back lets go of it then."""


class Pulse:
    """What the reflectors of one API server share. Without a heartbeat, no watch is taken for silent."""

    def __init__(self) -> None:
        self.silent = False
        self.beating = False
        """Whether a heartbeat would show that watches are silent."""
        self._limits: set[asyncio.Timeout] = set()

    def seconds(self, usual: int, without: int) -> int:
        """How long the next watch should be; `without`: if there is no heartbeat."""
        if self.silent:
            return min(usual, SILENT_SECONDS)
        return usual if self.beating else without

    @contextmanager
    def renewing(self) -> Iterator[asyncio.Timeout]:
        """A timeout for one watch; it expires when the watch is to be renewed."""
        limit = asyncio.timeout(None)
        self._limits.add(limit)
        try:
            yield limit
        finally:
            self._limits.discard(limit)

    def heard(self) -> None:
        """A heartbeat came in time."""
        if self.silent:
            log.info("watches bring what happens again")
        self.silent, self.beating = False, True

    def missed(self) -> None:
        """There was a heartbeat, and its watch did not bring it."""
        if not self.silent:
            log.warning("watches are silent, watching again", watches=len(self._limits))
        self.silent = True
        self._renew()

    def stopped(self) -> None:
        """There is no heartbeat any more."""
        if self.silent or self.beating:
            self.silent = self.beating = False
            self._renew()

    def _renew(self) -> None:
        now = asyncio.get_running_loop().time()
        for limit in self._limits:
            limit.reschedule(now)
