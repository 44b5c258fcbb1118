"""Events on pods whose models fail: the leader requests the status of pullers and writes the Events.

`kubectl describe pod` then lists the failed models with their reasons, and no pod needs a right to the API.

Law: the load that pods can cause is limited: `REQUESTS_PER_MINUTE` requests, `CONCURRENT_REQUESTS` at a
time, longer and longer pauses for a pod that does not answer, and `WRITES_PER_MINUTE` writes, with the
namespaces in turn. The state of the models decides, not its changes: an Event that could not be written is
written later, or not at all if its reason is gone.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from itertools import count
from typing import Final

import structlog
from msgspec import Struct, field

from policies.core.facts import Cluster, Facts
from policies.core.finding import Mode
from policies.kube.json import Json, text
from policies.kube.metadata import labels_of
from policies.models.model_puller import MUTATOR, status_port
from policies.models.model_puller_settings import ModelPuller
from webhook.admission.configuration import Config
from webhook.kube import events
from webhook.kube.calls import ApiError, Clock, Sleep, Writes, is_missing_right
from webhook.observed.status_pages import GetStatus, NoStatus, Page, Unloaded, status_client

log = structlog.get_logger()

FAILED: Final = "ModelsFailed"
RECOVERED: Final = "ModelsRecovered"
CONCURRENT_REQUESTS: Final = 8
REQUESTS_PER_MINUTE: Final = 600
WRITES_PER_MINUTE: Final = 48
"""With the Leases and the record of starts the leader stays below one write a second."""
LOADING_SECONDS: Final = 60.0
"""The pause between two requests to a pod with models that are not loaded."""
LOADED_SECONDS: Final = 300.0
UNREACHABLE_SECONDS: Final = 1800.0
"""The longest pause between two requests to a pod that does not answer."""
RENEW_SECONDS: Final = 1800.0
"""API servers delete Events, after an hour by default: an Event that is still true is renewed."""
_NAMED: Final = 5
"""Models in a message."""
_MAX_FAILED: Final = 100
"""Failed models that are remembered of a pod."""
_MAX_PAUSE: Final = 60.0
_IDLE_SECONDS: Final = 5.0
"""The longest sleep without work."""


class _Pod(Struct, eq=False):
    """A pod with a puller."""

    uid: str
    namespace: str
    name: str
    address: str
    port: int
    labels: Json
    misses: int = 0
    """Requests without an answer since the last answer."""
    failed: dict[str, Unloaded] = field(default_factory=dict)
    """The failed models by name. A model that is retried counts as failed until it is loaded."""
    total: int = 0
    loaded: int = 0
    reported: str | None = None
    """The `failures` of the last Event; None before the first."""
    reported_at: float = 0.0

    @property
    def failures(self) -> str:
        """The failed models with their reasons: pods with equal ones need no new Event."""
        return "\n".join(f"{name} {model.reason}" for name, model in sorted(self.failed.items()))

    def update(self, page: Page) -> None:
        self.total, self.loaded = page.total, page.loaded
        unloaded = {model.name: model for model in page.unloaded}
        failed = {name: model for name, model in unloaded.items() if model.failed}
        for name, model in self.failed.items():
            if name in unloaded or not page.complete:  # it is retried, or not on the page
                failed.setdefault(name, model)
        self.failed = dict(sorted(failed.items())[:_MAX_FAILED])


_ROUNDING = 1e-9
"""Sums of fractions may end slightly below 1, and a sleep of that length would not move a clock."""


class RateLimit:
    """A token bucket: `burst` calls at once, then `per_minute`."""

    def __init__(self, burst: int, per_minute: float, clock: Clock, sleep: Sleep) -> None:
        self._burst, self._per_second = burst, per_minute / 60
        self._clock, self._sleep = clock, sleep
        self._tokens, self._filled_at = float(burst), clock()

    async def take(self) -> None:
        while True:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._per_second)
            self._filled_at = now
            if self._tokens >= 1 - _ROUNDING:
                self._tokens -= 1
                return
            await self._sleep((1 - self._tokens) / self._per_second)


class RateLimited:
    """Writes within a rate limit: each call counts."""

    def __init__(self, api: Writes, limit: RateLimit) -> None:
        self._api, self._limit = api, limit

    async def unless_conflict(
        self, method: str, path: str, body: Json, content_type: str = "application/json"
    ) -> bool:
        await self._limit.take()
        return await self._api.unless_conflict(method, path, body, content_type)


def jittered(seconds: float) -> float:
    """80 to 100 % of a pause."""
    return random.uniform(seconds * 0.8, seconds)  # noqa: S311


class _FairQueue:
    """A queue of pods from which the namespaces take turns."""

    def __init__(self) -> None:
        self._namespaces: dict[str, dict[str, _Pod]] = {}

    def add(self, pod: _Pod) -> None:
        self._namespaces.setdefault(pod.namespace, {})[pod.uid] = pod

    def discard(self, pod: _Pod) -> None:
        pods = self._namespaces.get(pod.namespace, {})
        pods.pop(pod.uid, None)
        if not pods:
            self._namespaces.pop(pod.namespace, None)

    def pop(self) -> _Pod | None:
        namespace = next(iter(self._namespaces), None)
        if namespace is None:
            return None
        pods = self._namespaces.pop(namespace)
        pod = pods.pop(next(iter(pods)))
        if pods:
            self._namespaces[namespace] = pods
        return pod


class ModelEvents:
    """Requests the status of known pods and writes their Events, while this process leads."""

    def __init__(
        self,
        api: Writes,
        config: Callable[[], Config],
        cluster: Cluster,
        *,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        client: Callable[[int], AbstractAsyncContextManager[GetStatus]] = status_client,
    ) -> None:
        self._config, self._cluster = config, cluster
        self._clock, self._sleep, self._status_client = clock, sleep, client
        self._api = RateLimited(api, RateLimit(1, WRITES_PER_MINUTE, clock, sleep))
        self._requests = RateLimit(CONCURRENT_REQUESTS, REQUESTS_PER_MINUTE, clock, sleep)
        self._pods: dict[str, _Pod] = {}
        self._due: list[tuple[float, int, _Pod]] = []
        self._order = count()
        self._changes, self._renewals = _FairQueue(), _FairQueue()
        self._disabled = False

    def __len__(self) -> int:
        return len(self._pods)

    @property
    def enabled(self) -> bool:
        config = self._config()
        return not self._disabled and (config.value(ModelPuller).events or bool(config.webhook.overrides))

    # --- pods --------------------------------------------------------------------------------------

    def put(self, item: Json) -> None:
        """A pod was created or changed."""
        uid = text(item, "metadata", "uid")
        port = status_port(item)
        running = text(item, "status", "phase") == "Running" and not text(
            item, "metadata", "deletionTimestamp"
        )
        address = text(item, "status", "podIP")
        if port is None or not uid or not running or not address:
            self.forget(uid)
            return
        known = self._pods.get(uid)
        if known is not None:
            known.address, known.labels = address, dict(labels_of(item))
            return
        namespace, name = text(item, "metadata", "namespace"), text(item, "metadata", "name")
        pod = self._pods[uid] = _Pod(uid, namespace, name, address, port, dict(labels_of(item)))
        self._schedule(pod, 0)

    def keep_only(self, uids: set[str]) -> None:
        """All other pods are deleted."""
        for uid in self._pods.keys() - uids:
            self.forget(uid)

    def forget(self, uid: str) -> None:
        """The pod is deleted, or has no running puller."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._changes.discard(pod)
            self._renewals.discard(pod)

    # --- the work ----------------------------------------------------------------------------------

    def clear(self) -> None:
        """Another process leads: stop requests and writes."""
        self.keep_only(set())
        self._due.clear()

    async def run(self) -> None:
        self._due.clear()  # repeat requests that an earlier run did not complete
        for pod in self._pods.values():
            self._schedule(pod, 0)
        async with self._status_client(CONCURRENT_REQUESTS) as get_status, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write())
            slots = asyncio.Semaphore(CONCURRENT_REQUESTS)
            while True:
                pod = await self._next()
                await self._requests.take()
                await slots.acquire()
                task = tasks.create_task(self._check(get_status, pod))
                task.add_done_callback(lambda _: slots.release())

    def _schedule(self, pod: _Pod, seconds: float) -> None:
        heapq.heappush(self._due, (self._clock() + seconds, next(self._order), pod))

    async def _next(self) -> _Pod:
        """The next pod, once its request is due."""
        while True:
            wait = self._due[0][0] - self._clock() if self._due else _IDLE_SECONDS
            if wait > 0:
                await self._sleep(min(wait, _IDLE_SECONDS))
                continue
            pod = heapq.heappop(self._due)[2]
            if self._pods.get(pod.uid) is pod:
                return pod

    async def _check(self, get_status: GetStatus, pod: _Pod) -> None:
        """Request the status of a pod, and queue the pod if it needs an Event."""
        try:
            if not self._in_scope(pod):
                self._schedule(pod, LOADED_SECONDS)
                return
            page = await get_status(pod.address, pod.port)
        except NoStatus as why:
            pause = min(LOADING_SECONDS * 2**pod.misses, UNREACHABLE_SECONDS)
            pod.misses = min(pod.misses + 1, 10)
            log.debug("a puller gave no status", namespace=pod.namespace, pod=pod.name, why=str(why))
            self._schedule(pod, jittered(pause))
            return
        except Exception:  # a bug must not stop the requests to other pods
            log.exception("a puller's status can't be requested", namespace=pod.namespace, pod=pod.name)
            self._schedule(pod, UNREACHABLE_SECONDS)
            return
        pod.misses = 0
        pod.update(page)
        self._schedule(pod, jittered(LOADED_SECONDS if page.loaded == page.total else LOADING_SECONDS))
        if self._pods.get(pod.uid) is not pod:
            return
        if pod.failures != (pod.reported or ""):
            self._changes.add(pod)
        elif pod.reported and self._clock() - pod.reported_at >= RENEW_SECONDS:
            self._renewals.add(pod)

    def _in_scope(self, pod: _Pod) -> bool:
        """Whether the policy in force enables Events about the pod."""
        config = self._config()
        if self._disabled or not config.webhook.namespaces.covers(pod.namespace):
            return False
        obj = {"metadata": {"namespace": pod.namespace, "name": pod.name, "labels": pod.labels}}
        labels = Facts(pod.namespace, self._cluster).namespace_labels()
        effective = config.effective(obj, pod.namespace, labels)
        return effective.mutator_mode(MUTATOR) is not Mode.OFF and effective.settings(ModelPuller).events

    async def _write(self) -> None:
        pause = _IDLE_SECONDS
        while True:
            pod = self._changes.pop() or self._renewals.pop()
            if pod is None:
                await self._sleep(_IDLE_SECONDS)
                continue
            try:
                await self._report(pod)
                pause = _IDLE_SECONDS
            except ApiError as error:
                # The next request queues the pod again if the reason is still there.
                self._log_error(error)
                if error.status in (0, 429) or error.status >= 500:
                    await self._sleep(pause)
                    pause = min(pause * 2, _MAX_PAUSE)

    def _log_error(self, error: ApiError) -> None:
        if is_missing_right(error):
            self._disabled = True
            log.error("no Events about models until the next start: a right is missing", error=str(error))
        else:
            log.info("an Event about models can't be written", error=str(error))

    async def _report(self, pod: _Pod) -> None:
        failures = pod.failures
        regarding = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
        }
        if failures:
            await events.record(self._api, regarding, FAILED, failure(pod.failed, pod.total), key=failures)
        elif pod.reported:
            message = f"No model fails any longer: {pod.loaded} of {pod.total} are loaded"
            await events.record(self._api, regarding, RECOVERED, message, kind="Normal", key=RECOVERED)
        pod.reported, pod.reported_at = failures, self._clock()


def failure(failed: dict[str, Unloaded], total: int) -> str:
    """One sentence about the failed models: `2 of 40 models failed: a: NotFound: …; b: …`."""
    named = list(failed.values())[:_NAMED]
    # An Event has 1,024 characters: each model gets its share.
    room = (events.MAX_MESSAGE_LENGTH - 100) // len(named)
    reasons = "; ".join(
        ": ".join(part for part in (each.name, each.reason, each.message) if part)[:room] for each in named
    )
    more = f"; and {len(failed) - len(named)} more" if len(failed) > len(named) else ""
    return f"{len(failed)} of {max(total, len(failed))} models failed: {reasons}{more}"
