"""`chassis_unmutated_pods`: the number of running pods that lack fields which the policy adds to new pods.

Only the holder of the Lease `mlchassis-uptime` counts. Law: one page of pods is in memory at a time, a
decision blocks the event loop no longer than a review does, and one pod of each owner is decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Gauge

from policies.core.annotations import CHANGED
from policies.core.facts import Cluster
from policies.kube.json import Json, text
from policies.kube.metadata import annotations_of, controller
from webhook.admission.configuration import Config
from webhook.admission.missed import Difference, excluded, is_current, missed, runs
from webhook.kube import paths
from webhook.kube.api import ApiServer
from webhook.kube.errors import ApiError

log = structlog.get_logger()

PASS_SECONDS: Final = 300.0
FIRST_SECONDS: Final = 60.0
"""The delay after the start, so that the facts have been read."""
PAUSE_SECONDS: Final = 0.01
"""The pause after each decision, for waiting reviews."""


class Unmutated:
    """Counts every PASS_SECONDS in the process for which `is_leader` is true."""

    def __init__(
        self,
        api: ApiServer,
        config: Callable[[], Config],
        cluster: Cluster,
        registry: CollectorRegistry,
        is_leader: Callable[[], bool],
    ) -> None:
        self._api, self._config, self._cluster, self._is_leader = api, config, cluster, is_leader
        self.gauge = Gauge(
            "chassis_unmutated_pods",
            "Running pods that lack what the policy in force gives to new ones; one replica counts, the "
            "others show 0",
            multiprocess_mode="livemax",
            registry=registry,
        )

    async def run(self) -> None:
        """Count until cancelled."""
        await asyncio.sleep(FIRST_SECONDS)
        while True:
            if self._is_leader():
                try:
                    self.gauge.set(await self.count())
                except ApiError as error:
                    log.warning("unmutated pods can't be counted", error=str(error))
            else:
                self.gauge.set(0)
            await asyncio.sleep(PASS_SECONDS)

    async def count(self) -> int:
        """The number of such pods. ApiError if pods can't be listed."""
        found, known = 0, dict[tuple[str, ...], bool]()
        async for pod in self._api.objects(paths.collection("v1", "pods")):
            found += await self._lacks_fields(pod, known)
        return found

    async def _lacks_fields(self, pod: Json, known: dict[tuple[str, ...], bool]) -> bool:
        config = self._config()
        if not runs(pod) or is_current(pod, config) or excluded(pod, config, self._cluster):
            return False
        # Only the annotation shows that two pods of one owner have the same fields.
        owner = controller(pod) if config.webhook.changes.annotation else None
        uid = text(owner or {}, "uid") or text(pod, "metadata", "uid")
        key = uid, annotations_of(pod).get(CHANGED, ""), config.digest
        if key not in known:
            found = missed({"apiVersion": "v1", "kind": "Pod", **pod}, config, self._cluster)
            known[key] = found is not None and found.difference is Difference.LACKS
            await asyncio.sleep(PAUSE_SECONDS)
        return known[key]
