"""The task of the leader: it watches the cluster's pods, records their starts and ends in one ConfigMap, and
passes the pods on to `ModelEvents`.

Law: no review waits for this, and a failure here changes no answer. The ConfigMap is written at most once in
`WRITE_SECONDS`, only after new observations, and by compare-and-swap. After an error the pause between writes
doubles. The number of unwritten observations is limited, and one namespace cannot displace those of another.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import structlog

from policies.core.annotations import OBSERVED_UNTIL
from policies.core.facts import Cluster
from policies.kube.json import Json, mapping, text
from policies.kube.metadata import annotations_of
from policies.probes.observed import OBSERVED
from policies.probes.standard_probes_settings import Learning, StandardProbes
from webhook.admission.configuration import Config
from webhook.kube import paths
from webhook.kube.calls import ApiError, Calls, Clock, Sleep
from webhook.kube.reflector import Lister, Reflector
from webhook.observed.model_events import ModelEvents
from webhook.observed.pods import PodTracker, UnreadPod
from webhook.observed.record import Observation, Record, as_config_map

log = structlog.get_logger()

POLL_SECONDS: Final = 1.0
"""How often the process checks whether it leads, without a request. Starts before that are missed."""
WRITE_SECONDS: Final = 60.0
MAX_PAUSE: Final = 900.0
"""The longest pause between two writes while the API server returns errors."""
MAX_PENDING: Final = 20_000
"""Unwritten observations, of a few hundred bytes each."""
MAX_UNREAD: Final = 2_000
"""Pods with news that wait to be read; then the oldest is dropped."""
SCHEDULED: Final = {"fieldSelector": "spec.nodeName!="}
"""Pods without a node have no containers: the API server sends no events about them."""


class Api(Calls, Lister, Protocol):
    """The used methods of `ApiServer`."""


class Collector:
    """Records the starts and ends of containers while this process leads."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        leads: Callable[[], bool],
        config: Callable[[], Config],
        cluster: Cluster,
        models: ModelEvents,
        *,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`namespace`: the webhook's own; `leads`: whether this process is the leader."""
        self._api, self._namespace, self._config, self._cluster = api, namespace, config, cluster
        self._leads, self._clock, self._sleep = leads, clock, sleep
        self._models = models
        self._pending = Pending()
        self._record = Record()
        self._written: Json = {}
        """The data of the ConfigMap after the last write."""
        self._pause = WRITE_SECONDS

    async def run(self) -> None:
        while True:
            if self._enabled() and self._leads():
                await self._lead()
            await self._sleep(POLL_SECONDS)

    def _enabled(self) -> bool:
        return self._config().value(StandardProbes).learning is Learning.ON or self._models.enabled

    async def _lead(self) -> None:
        try:
            since = await self._read()
        except ApiError as error:
            log.info("observed starts can't be read", error=str(error))
            return
        log.info("observing starts and ends of pods", since=int(since))
        sink = PodSink(PodTracker(self._config, self._cluster, since), self._pending, self._models)
        path = paths.collection("v1", "pods")
        reflector = Reflector(self._api, path, sink, query=SCHEDULED)
        watching = asyncio.create_task(reflector.run())
        reading = asyncio.create_task(sink.read())
        due = self._clock()
        try:
            while self._enabled() and self._leads():
                if self._clock() >= due and self._pending:
                    await self._write()
                    due = self._clock() + self._pause
                await self._sleep(POLL_SECONDS)
        finally:
            watching.cancel()
            reading.cancel()
            await asyncio.gather(watching, reading, return_exceptions=True)
            self._models.clear()
            self._pending.take()  # the next leader finds the same in the statuses
        log.info("no longer observing starts and ends of pods")

    async def _read(self) -> float:
        """Read the record; returns the time up to which it is complete."""
        found = await self._api.get(paths.one("v1", "configmaps", OBSERVED, self._namespace))
        now = self._api.now()
        if found is None:
            return now
        self._record = Record.load(mapping(found, "data"), self._record)
        until = annotations_of(found).get(OBSERVED_UNTIL)
        return (
            min(float(until), now) if isinstance(until, str) and until.isascii() and until.isdigit() else now
        )

    async def _write(self) -> None:
        """Write the pending observations, or keep them for the next attempt."""
        observations = self._pending.take()
        try:
            written = await self._merge(observations)
        except ApiError as error:
            self._pause = min(self._pause * 2, MAX_PAUSE)
            log.warning("observed starts can't be written", error=str(error), again=self._pause)
            written = False
        else:
            self._pause = WRITE_SECONDS if written else self._pause
        if not written:
            self._pending.add([*observations, *self._pending.take()])

    async def _merge(self, observations: list[Observation]) -> bool:
        """Add observations to the record in the cluster; False after a concurrent write."""
        path = paths.one("v1", "configmaps", OBSERVED, self._namespace)
        found, now = await self._api.get(path), int(self._api.now())
        record, wanted = await asyncio.to_thread(self._with, observations, found, now)
        if found is None:
            collection = paths.collection("v1", "configmaps", self._namespace)
            written = await self._api.unless_conflict("POST", collection, wanted)
        else:
            written = await self._api.unless_conflict("PUT", path, wanted)
        if written:
            self._record, self._written = record, wanted["data"]
        return written

    def _with(self, observations: list[Observation], found: Json | None, now: int) -> tuple[Record, Json]:
        """The record with the observations, and its ConfigMap. Runs in a thread."""
        data = mapping(found, "data")
        # A deleted record is restored as it was last written.
        if found is None or data == self._written:
            record = Record(self._record.namespaces)
        else:
            record = Record.load(data, self._record)
        record.add(observations, now)
        return record, as_config_map(record, self._namespace, OBSERVED, now, found)


class Pending:
    """Unwritten observations. If there are too many, the namespace with the most loses its oldest one."""

    def __init__(self) -> None:
        self._namespaces: dict[str, deque[Observation]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, observations: Iterable[Observation]) -> None:
        for each in observations:
            self._namespaces.setdefault(each.namespace, deque()).append(each)
            self._count += 1
            if self._count > MAX_PENDING:
                max(self._namespaces.values(), key=len).popleft()
                self._count -= 1

    def take(self) -> list[Observation]:
        """Remove and return all, those of each namespace in order."""
        taken = [each for observations in self._namespaces.values() for each in observations]
        self._namespaces, self._count = {}, 0
        return taken


class PodSink:
    """The sink of the pods' reflector: passes each pod to `ModelEvents` and to `PodTracker`.

    The containers of a pod with news are read later, by `read`: one pod at a time, each on a budget, and
    reviews are answered in between.
    """

    def __init__(self, tracker: PodTracker, pending: Pending, models: ModelEvents) -> None:
        self._tracker, self._pending, self._models = tracker, pending, models
        self._listed: set[str] | None = None
        """The uids of a list, until it is complete."""
        self._failed = False
        self._unread: asyncio.Queue[UnreadPod] = asyncio.Queue(MAX_UNREAD)

    async def read(self) -> None:
        """Read pods with news, without end."""
        while True:
            unread = await self._unread.get()
            with self._reported(unread.pod):
                self._pending.add(unread.observations())
            await asyncio.sleep(0)

    def begin(self) -> None:
        self._listed = set()

    def put(self, item: Json) -> None:
        if self._listed is not None:
            self._listed.add(text(item, "metadata", "uid"))
        with self._reported(item):
            self._models.put(item)
            if (news := self._tracker.observe(item)) is not None:
                if self._unread.full():
                    self._unread.get_nowait()
                self._unread.put_nowait(news)

    @contextmanager
    def _reported(self, pod: Json) -> Iterator[None]:
        """Log the first bug: it must not make the reflector list all pods repeatedly."""
        try:
            yield
        except Exception:
            if not self._failed:
                log.exception("a pod can't be observed", pod=text(pod, "metadata", "name"))
            self._failed = True

    def commit(self) -> None:
        if self._listed is not None:
            self._tracker.keep_only(self._listed)
            self._models.keep_only(self._listed)
        self._listed = None

    def remove(self, item: Json) -> None:
        self.put(item)  # its last status
        uid = text(item, "metadata", "uid")
        self._tracker.forget(uid)
        self._models.forget(uid)

    def lost(self, error: ApiError) -> None:
        pass
