"""Whether watches deliver events, found out without a request.

A watch can stall while its connection lives: a proxy buffers its events, or the other end is gone without a
FIN. Silence proves nothing, since most resources rarely change. But the kubelet renews the Lease of its node
every ten seconds, so a watch of the Lease of the webhook's own node always has events
(`webhook.kube.heartbeat`). While they arrive, the other watches are long. If they stop although the Lease was
renewed, all watches are restarted at once, and are short until the Lease's watch delivers events again.
Without such a Lease, each reflector chooses how long its watches are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog

log = structlog.get_logger()

SHORT_SECONDS: Final = 20
"""The length of an urgent watch without a heartbeat."""
STALLED_SECONDS: Final = 10
"""The length of a watch while watches are stalled: a proxy that buffers everything delivers it at the end."""


class WatchHealth:
    """Shared by all reflectors of one API server. Without a heartbeat no watch counts as stalled."""

    def __init__(self) -> None:
        self.stalled = False
        self.has_heartbeat = False
        self._timeouts: set[asyncio.Timeout] = set()

    def seconds(self, usual: int, without_heartbeat: int) -> int:
        if self.stalled:
            return min(usual, STALLED_SECONDS)
        return usual if self.has_heartbeat else without_heartbeat

    @contextmanager
    def restartable(self) -> Iterator[asyncio.Timeout]:
        """A timeout for one watch; it expires when the watch must be restarted."""
        timeout = asyncio.timeout(None)
        self._timeouts.add(timeout)
        try:
            yield timeout
        finally:
            self._timeouts.discard(timeout)

    def beat(self) -> None:
        """A heartbeat arrived in time."""
        if self.stalled:
            log.info("watches deliver events again")
        self.stalled, self.has_heartbeat = False, True

    def missed(self) -> None:
        """The kubelet renewed the Lease, and the watch did not deliver the event."""
        if not self.stalled:
            log.warning("watches are stalled, restarting them", watches=len(self._timeouts))
        self.stalled = True
        self._restart()

    def stopped(self) -> None:
        """The kubelet no longer renews the Lease, or it cannot be read."""
        if self.stalled or self.has_heartbeat:
            self.stalled = self.has_heartbeat = False
            self._restart()

    def _restart(self) -> None:
        now = asyncio.get_running_loop().time()
        for timeout in self._timeouts:
            timeout.reschedule(now)
