"""The heartbeat of all watches: the Lease of the webhook's own node, which the kubelet renews every 10 s."""

from __future__ import annotations

import asyncio
from typing import Final

from policies.kube.json import Json, text
from webhook.kube import paths
from webhook.kube.errors import ApiError
from webhook.kube.leases import LEASES
from webhook.kube.reflector import Lister, Reflector
from webhook.kube.watch_health import WatchHealth

NAMESPACE: Final = "kube-node-lease"
"""The namespace of kubelets' Leases; a Lease has its node's name."""
LATE_SECONDS: Final = 15.0
"""Without an event for so long, the Lease is read. The kubelet renews it every 10 s, with 0.4 s of jitter."""
ANSWER_SECONDS: Final = 3.0
"""The timeout of that read. An idle connection of the pool may be dead, too: the next attempt uses
another."""
ATTEMPTS: Final = 3
ARRIVAL_SECONDS: Final = 1.0
"""How long the event may arrive after a read has returned the new version."""
MARGIN_SECONDS: Final = 0.25
"""Events count only if they arrive so long before the requested end of the watch: a proxy that buffers
everything delivers them together with the end."""


class Heartbeat:
    """Shows a `WatchHealth` whether watches deliver events; it is the sink of the heartbeat's reflector."""

    def __init__(self, lister: Lister, node: str, health: WatchHealth) -> None:
        self._lister, self._health = lister, health
        self._path = paths.collection(LEASES, "leases", NAMESPACE)
        self._query = {"fieldSelector": f"metadata.name={node}"}
        self._version = ""
        self._listed = self._renewed = False
        self._timer: asyncio.TimerHandle | None = None
        self._checking: asyncio.Task[None] | None = None

    async def run(self) -> None:
        reflector = Reflector(
            self._lister, self._path, self, query=self._query, health=self._health, received=self._received
        )
        try:
            await reflector.run()
        finally:
            self._set_timer(None)
            if self._checking is not None:
                self._checking.cancel()

    # --- the sink --------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._listed = False

    def put(self, item: Json) -> None:
        version = text(item, "metadata", "resourceVersion")
        self._listed, self._renewed = True, version != self._version
        self._version = version

    def commit(self) -> None:
        if not self._listed:
            self._stop()
        elif not self._health.stalled:
            self._beat()  # while watches are stalled, a list does not prove that they work

    def remove(self, item: Json) -> None:
        self._stop()

    def lost(self, error: ApiError) -> None:
        if error.status in (401, 403, 404):
            self._stop()

    # --- beats -----------------------------------------------------------------------------------------

    def _received(self, remaining: float) -> None:
        """The watch delivered an event, `remaining` seconds before its requested end.

        A bookmark proves that the watch works, but not that the kubelet renews the Lease.
        """
        if remaining >= MARGIN_SECONDS and self._listed and (self._renewed or self._health.stalled):
            self._renewed = False
            self._beat()

    def _beat(self) -> None:
        self._health.beat()
        self._set_timer(LATE_SECONDS)

    def _stop(self) -> None:
        self._listed = False
        self._health.stopped()
        self._set_timer(None)

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._late) if seconds else None

    def _late(self) -> None:
        self._checking = asyncio.create_task(self._check())

    async def _check(self) -> None:
        """Decide whether the kubelet is late or the watch is stalled."""
        timer = self._timer
        newest = await self._newest_version()
        await asyncio.sleep(ARRIVAL_SECONDS)
        if self._timer is not timer:
            return  # an event arrived
        if newest is None:
            self._set_timer(LATE_SECONDS)  # the reflectors report an unreachable API server
        elif newest in ("", self._version):
            self._health.stopped()  # until the kubelet renews it again
        else:
            self._health.missed()

    async def _newest_version(self) -> str | None:
        """The Lease's resourceVersion; empty if there is no Lease, None without an answer."""
        for _ in range(ATTEMPTS):
            version = ""
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    async for items, _ in self._lister.pages(self._path, self._query):
                        for item in items:
                            version = text(item, "metadata", "resourceVersion")
            except TimeoutError:
                continue
            except ApiError:
                return None
            return version
        return None
