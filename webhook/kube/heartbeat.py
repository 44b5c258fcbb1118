"""The Lease of the webhook's own node, which kubelet renews every 10 s: the heartbeat of all watches."""

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
"""Where kubelets keep the Leases of their nodes; a Lease has its node's name."""
LATE_SECONDS: Final = 15.0
"""A heartbeat that did not come for so long is asked for. kubelet renews after 10 s, give or take 0.4 s."""
ANSWER_SECONDS: Final = 3.0
"""How long the answer to that may take. An idle connection of the pool can be as dead as those of watches:
then the next question goes over another one."""
QUESTIONS: Final = 3
ARRIVAL_SECONDS: Final = 1.0
"""How long an event may be on its way after a read has shown what it brings."""
MARGIN_SECONDS: Final = 0.25
"""How long before the agreed end of its watch an event must come. One that comes together with the end does
not count: that is how a proxy answers that holds back."""


class Heartbeat:
    """Shows a `WatchHealth` whether watches deliver events; it is the sink of the heartbeat's reflector."""

    def __init__(self, lister: Lister, node: str, health: WatchHealth) -> None:
        """`node`: the name of the node that this process runs on."""
        self._lister, self._health = lister, health
        self._path = paths.collection(LEASES, "leases", NAMESPACE)
        self._query = {"fieldSelector": f"metadata.name={node}"}
        self._version = ""
        self._listed = self._renewed = False
        self._due: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Follow the Lease until cancelled."""
        following = Reflector(
            self._lister, self._path, self, query=self._query, health=self._health, heard=self._heard
        )
        try:
            await following.run()
        finally:
            self._expect(None)
            if self._asking is not None:
                self._asking.cancel()

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
            self._beat()  # while watches are silent, a list does not prove that they work

    def remove(self, item: Json) -> None:
        self._stop()

    def lost(self, error: ApiError) -> None:
        if error.status in (401, 403, 404):
            self._stop()

    # --- beats -----------------------------------------------------------------------------------------

    def _heard(self, left: float) -> None:
        """The watch brought something, `left` seconds before its agreed end.

        A bookmark shows that the watch works, but not that kubelet renews the Lease.
        """
        if left >= MARGIN_SECONDS and self._listed and (self._renewed or self._health.stalled):
            self._renewed = False
            self._beat()

    def _beat(self) -> None:
        self._health.beat()
        self._expect(LATE_SECONDS)

    def _stop(self) -> None:
        self._listed = False
        self._health.stopped()
        self._expect(None)

    def _expect(self, seconds: float | None) -> None:
        if self._due is not None:
            self._due.cancel()
        self._due = asyncio.get_running_loop().call_later(seconds, self._late) if seconds else None

    def _late(self) -> None:
        self._asking = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        """Whether kubelet is late, or the watch."""
        due = self._due
        newest = await self._newest()
        await asyncio.sleep(ARRIVAL_SECONDS)
        if self._due is not due:
            return  # it came after all
        if newest is None:
            self._expect(LATE_SECONDS)  # the reflectors themselves meet an API server that is away
        elif newest in ("", self._version):
            self._health.stopped()  # until kubelet renews it again
        else:
            self._health.missed()

    async def _newest(self) -> str | None:
        """The Lease's resourceVersion now; empty if there is no Lease, None without an answer."""
        for _ in range(QUESTIONS):
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
