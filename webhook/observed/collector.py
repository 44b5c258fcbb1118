"""The leader's work: watch the pods of the cluster, write what they show to one ConfigMap, and show them to
`ModelEvents`.

Law: no review waits for this, and a failure here changes no answer. The ConfigMap is written at most once in
`WRITE_SECONDS`, only if something was seen, and by compare-and-swap. An API server that is slow or puts calls
off is asked more and more rarely. The number of unwritten observations is bounded, and one namespace cannot
push out those of another.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import structlog

from policies.core.annotations import OBSERVED_UNTIL
from policies.core.facts import Cluster
from policies.kube.json import Json, mapping, text
from policies.kube.metadata import annotations_of
from policies.probes.observed import OBSERVED
from policies.probes.settings import Learning, StandardProbes
from webhook.admission.configuration import Config
from webhook.kube import paths
from webhook.kube.allowance import Sleep
from webhook.kube.calls import Calls
from webhook.kube.errors import ApiError
from webhook.kube.reflector import Lister, Reflector
from webhook.kube.watch_health import WatchHealth
from webhook.observed.model_events import ModelEvents
from webhook.observed.pods import Watched
from webhook.observed.record import Observation, Record, as_config_map

log = structlog.get_logger()

LOOK_SECONDS: Final = 1.0
"""Between two looks at whether this process leads, which ask nobody: starts before the first are missed."""
WRITE_SECONDS: Final = 60.0
LONGEST_PAUSE: Final = 900.0
"""Between two attempts to write, while the API server refuses or is away."""
MOST_PENDING: Final = 20_000
"""Observations that wait for the next write, of a few hundred bytes each."""
SCHEDULED: Final = {"fieldSelector": "spec.nodeName!="}
"""A pod without a node has no containers: its creation, and what keeps it from a node, is not sent to us."""


class Api(Calls, Lister, Protocol):
    """The part of `ApiServer` that is needed."""


class Collector:
    """Records the starts and ends of containers while this process leads."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        leads: Callable[[], bool],
        config: Callable[[], Config],
        cluster: Cluster,
        health: WatchHealth,
        models: ModelEvents,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`namespace`: the webhook's own; `leads` is true in one of all serving processes."""
        self._api, self._namespace, self._config, self._cluster = api, namespace, config, cluster
        self._leads, self._health, self._clock, self._sleep = leads, health, clock, sleep
        self._models = models
        self._pending = Pending()
        self._record = Record()
        self._written: Json = {}
        """The data that the record was last written as."""
        self._pause = WRITE_SECONDS

    async def run(self) -> None:
        """Record while this process leads, until cancelled."""
        while True:
            if self._is_on() and self._leads():
                await self._lead()
            await self._sleep(LOOK_SECONDS)

    def _is_on(self) -> bool:
        return self._config().value(StandardProbes).learning is Learning.ON or self._models.is_on

    async def _lead(self) -> None:
        try:
            since = await self._read()
        except ApiError as error:
            log.info("observed starts can't be read", error=str(error))
            return
        log.info("observing starts and ends of pods", since=int(since))
        seen = _Sink(Watched(self._config, self._cluster, since), self._pending, self._models)
        path = paths.collection("v1", "pods")
        reflector = Reflector(self._api, path, seen, query=SCHEDULED, health=self._health)
        watching = asyncio.create_task(reflector.run())
        due = self._clock()
        try:
            while self._is_on() and self._leads():
                if self._clock() >= due and self._pending:
                    await self._write()
                    due = self._clock() + self._pause
                await self._sleep(LOOK_SECONDS)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            self._models.clear()
            self._pending.take()  # the next leader sees it in the pods
        log.info("no longer observing starts and ends of pods")

    async def _read(self) -> float:
        """Read the record; the time up to which everything was seen."""
        found = await self._api.get(paths.one("v1", "configmaps", OBSERVED, self._namespace))
        now = self._api.now()
        if found is None:
            return now
        self._record = Record.load(mapping(found, "data"), self._record)
        until = annotations_of(found).get(OBSERVED_UNTIL)
        return min(float(until), now) if isinstance(until, str) and until.isdigit() else now

    async def _write(self) -> None:
        """Add observations to the present record, or keep it for the next time."""
        observations = self._pending.take()
        try:
            written = await self._merge(observations)
        except ApiError as error:
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
            log.warning("observed starts can't be written", error=str(error), again=self._pause)
            written = False
        else:
            self._pause = WRITE_SECONDS if written else self._pause
        if not written:
            self._pending.add([*observations, *self._pending.take()])

    async def _merge(self, observations: list[Observation]) -> bool:
        """False if somebody else wrote at the same time."""
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
        """The record with more observations, and the ConfigMap for it. Runs in a thread."""
        data = mapping(found, "data")
        # If it was deleted, the record that was written last comes back.
        if found is None or data == self._written:
            record = Record(self._record.namespaces)
        else:
            record = Record.load(data, self._record)
        record.add(observations, now)
        return record, as_config_map(record, self._namespace, OBSERVED, now, found)


class Pending:
    """Observations that wait. If there are too many, the namespace with the most gives up its oldest one."""

    def __init__(self) -> None:
        self._namespaces: dict[str, deque[Observation]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, observations: Iterable[Observation]) -> None:
        for each in observations:
            self._namespaces.setdefault(each.namespace, deque()).append(each)
            self._count += 1
            if self._count > MOST_PENDING:
                max(self._namespaces.values(), key=len).popleft()
                self._count -= 1

    def take(self) -> list[Observation]:
        """All of them, each namespace's in order; none waits any longer."""
        taken = [each for waiting in self._namespaces.values() for each in waiting]
        self._namespaces, self._count = {}, 0
        return taken


class _Sink:
    """Shows each pod to `Watched`, and keeps what that makes of it; then to `ModelEvents`."""

    def __init__(self, watched: Watched, pending: Pending, models: ModelEvents) -> None:
        self._watched, self._pending, self._models = watched, pending, models
        self._listed: set[str] | None = None
        self._failed = False

    def begin(self) -> None:
        self._listed = set()
        self._models.begin()

    def put(self, item: Json) -> None:
        if self._listed is not None:
            self._listed.add(text(item, "metadata", "uid"))
        self._see(item)

    def commit(self) -> None:
        if self._listed is not None:
            self._watched.keep(self._listed)
            self._models.commit()
        self._listed = None

    def remove(self, item: Json) -> None:
        self._see(item)
        self._watched.forget(text(item, "metadata", "uid"))
        self._models.remove(item)

    def lost(self, error: ApiError) -> None:
        pass

    def _see(self, pod: Json) -> None:
        try:
            self._models.put(pod)
            self._pending.add(self._watched.see(pod))
        except Exception:  # a bug of ours must not make the reflector list all pods again and again
            if not self._failed:
                log.exception("a pod can't be observed", pod=text(pod, "metadata", "name"))
            self._failed = True
