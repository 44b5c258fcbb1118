"""Gauges about the running pods: those that lack fields which the policy adds to new pods, and the containers
of recognised servers by whether liveness notices a hang.

Only the holder of the Lease `mlchassis-uptime` counts. Law: one page of pods is in memory at a time, a
decision blocks the event loop no longer than a review does, and one pod of each owner is decided.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import structlog
from msgspec import Struct, field
from prometheus_client import CollectorRegistry, Gauge

from policies.core.annotations import CHANGED
from policies.core.facts import Cluster
from policies.kube.json import Json, text
from policies.kube.metadata import annotations_of, controller
from policies.probes.serving import recognised, serving_containers
from webhook.admission.configuration import Config
from webhook.admission.missed import Difference, excluded, missed, runs
from webhook.admission.review import of_running
from webhook.kube import paths
from webhook.kube.api import ApiServer
from webhook.kube.calls import ApiError
from webhook.observed.hangs import hang_of

log = structlog.get_logger()

PASS_SECONDS: Final = 300.0
FIRST_SECONDS: Final = 60.0
"""The delay after the start, so that the facts have been read."""
PAUSE_SECONDS: Final = 0.01
"""The pause after each decision, for waiting reviews."""
_HANG: Final = {True: "noticed", False: "not_noticed", None: "unknown"}
"""The label `hang`."""


class Seen(Struct, frozen=True):
    """What is known of a pod, and of all pods of its owner with the same fields."""

    lacks: bool
    servers: tuple[tuple[str, str], ...]
    """Of each recognised server: its preset, and the label `hang`."""


class Counts(Struct):
    """The result of a pass."""

    unmutated: int = 0
    servers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Containers by preset and label `hang`."""


class RunningPods:
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
        self.unmutated = Gauge(
            "chassis_unmutated_pods",
            "Running pods that lack fields that the current policy adds to new pods; one replica counts, "
            "the others show 0",
            multiprocess_mode="livemax",
            registry=registry,
        )
        self.servers = Gauge(
            "chassis_server_containers",
            "Running containers of recognised servers, by whether their livenessProbe notices a hang: "
            "noticed, not_noticed or unknown; one replica counts, the others show 0",
            ("server", "hang"),
            multiprocess_mode="livemax",
            registry=registry,
        )
        self._shown: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Count until cancelled."""
        await asyncio.sleep(FIRST_SECONDS)
        while True:
            if self._is_leader():
                try:
                    self._show(await self.count())
                except ApiError as error:
                    log.warning("running pods can't be counted", error=str(error))
            else:
                self._show(Counts())
            await asyncio.sleep(PASS_SECONDS)

    def _show(self, counts: Counts) -> None:
        self.unmutated.set(counts.unmutated)
        self._shown |= counts.servers.keys()
        for labels in self._shown:  # the files of several processes keep a series: it becomes 0
            self.servers.labels(*labels).set(counts.servers[labels])

    async def count(self) -> Counts:
        """ApiError if pods can't be listed."""
        counts, known = Counts(), dict[tuple[str, ...], Seen]()
        async for pod in self._api.objects(paths.collection("v1", "pods")):
            config = self._config()
            if runs(pod) and not excluded(pod, config, self._cluster):
                seen = await self._seen(pod, config, known)
                counts.unmutated += seen.lacks
                counts.servers.update(seen.servers)
        return counts

    async def _seen(self, pod: Json, config: Config, known: dict[tuple[str, ...], Seen]) -> Seen:
        # Only the annotation shows that two pods of one owner have the same fields.
        owner = controller(pod) if config.webhook.changes.annotation else None
        uid = text(owner or {}, "uid") or text(pod, "metadata", "uid")
        key = uid, annotations_of(pod).get(CHANGED, ""), config.digest
        if key not in known:
            known[key] = await self._decided(pod, config)
        return known[key]

    async def _decided(self, pod: Json, config: Config) -> Seen:
        pod = {"apiVersion": "v1", "kind": "Pod", **pod}
        found = missed(pod, config, self._cluster)
        lacks = found is not None and found.difference is Difference.LACKS
        seen = Seen(lacks, tuple(self._servers(pod, config)))
        await asyncio.sleep(PAUSE_SECONDS)
        return seen

    def _servers(self, pod: Json, config: Config) -> Iterator[tuple[str, str]]:
        read = of_running(pod, config, self._cluster)
        if read is None:
            return
        template, facts = read
        for container in serving_containers(template.view, facts):
            server = recognised(container, facts)
            if server is not None:
                yield server.name, _HANG[hang_of(template, container, facts).noticed]
