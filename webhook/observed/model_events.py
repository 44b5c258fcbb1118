"""Events on pods whose models fail: the leader asks the pullers, and writes what a user should see.

`kubectl describe pod` then lists the models that fail and why, and no pod needs a right to the API.

Law: what pods make the leader do is bounded, whatever they are. It asks `ASKS_A_MINUTE` pods at most,
`AT_ONCE` at a time, a pod that does not answer more and more rarely, and makes at most `WRITES_A_MINUTE`
calls that write: namespaces take turns. It decides by the state of the models, never by a change: an Event
that could not be written is written later, or not at all if its reason is gone.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import structlog

from policies.core.facts import Cluster, Facts
from policies.core.mode import Mode
from policies.kube.json import Json, text
from policies.kube.metadata import labels_of
from policies.models.model_puller import MUTATOR
from policies.models.settings import ModelPuller
from policies.models.sidecar import status_port
from webhook.admission.configuration import Config
from webhook.kube import events
from webhook.kube.allowance import Allowance, Paced, Sleep, spread
from webhook.kube.calls import Writes
from webhook.kube.errors import ApiError, is_missing_right
from webhook.observed.status_pages import Ask, Page, Unanswered, Unloaded, asking

log = structlog.get_logger()

FAILED: Final = "ModelsFailed"
RECOVERED: Final = "ModelsRecovered"
AT_ONCE: Final = 8
ASKS_A_MINUTE: Final = 600
WRITES_A_MINUTE: Final = 48
"""With the Leases and the record of starts the leader stays below one write a second."""
UNSETTLED_SECONDS: Final = 60.0
"""Between two questions to a pod with models that are not loaded."""
SETTLED_SECONDS: Final = 300.0
LONGEST_SILENCE: Final = 1800.0
"""Between two questions to a pod that does not answer."""
RENEW_SECONDS: Final = 1800.0
"""An API server forgets Events, after an hour by default: one that is still true is renewed."""
_NAMED: Final = 5
"""Models in a message."""
_LONGEST_PAUSE: Final = 60.0
_IDLE_SECONDS: Final = 5.0
"""Between two looks while there is nothing to do."""


@dataclass(slots=True, eq=False)
class _Pod:
    """A pod with a puller."""

    uid: str
    namespace: str
    name: str
    address: str
    port: int
    labels: Json
    misses: int = 0
    """How often in a row it did not answer."""
    failed: dict[str, Unloaded] = field(default_factory=dict)
    """The models that fail, by name. One that is tried again fails until it is loaded."""
    total: int = 0
    loaded: int = 0
    reported: str | None = None
    """What the last Event was about; None before the first."""
    reported_at: float = 0.0

    @property
    def news(self) -> str:
        """What an Event would be about: the models that fail, and their reasons."""
        return "\n".join(f"{name} {model.reason}" for name, model in sorted(self.failed.items()))

    def take(self, page: Page) -> None:
        """The status of now."""
        self.total, self.loaded = page.total, page.loaded
        now = {model.name: model for model in page.unloaded}
        failed = {name: model for name, model in now.items() if model.failed}
        for name, model in self.failed.items():
            if name in now or not page.complete:  # it is tried again, or the page had no room for it
                failed.setdefault(name, model)
        self.failed = dict(sorted(failed.items())[:_MOST_FAILED])


_MOST_FAILED: Final = 100


class _Turns:
    """Pods that wait, by namespace: each namespace in its turn, so that none keeps the others waiting."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, _Pod]] = {}

    def add(self, pod: _Pod) -> None:
        self._waiting.setdefault(pod.namespace, {})[pod.uid] = pod

    def drop(self, pod: _Pod) -> None:
        pods = self._waiting.get(pod.namespace, {})
        pods.pop(pod.uid, None)
        if not pods:
            self._waiting.pop(pod.namespace, None)

    def next(self) -> _Pod | None:
        """The next pod; it waits no longer."""
        namespace = next(iter(self._waiting), None)
        if namespace is None:
            return None
        pods = self._waiting.pop(namespace)
        pod = pods.pop(next(iter(pods)))
        if pods:
            self._waiting[namespace] = pods
        return pod


class ModelEvents:
    """A reflector's sink of pods, and the work on them while this process leads."""

    def __init__(
        self,
        api: Writes,
        config: Callable[[], Config],
        cluster: Cluster,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        pages: Callable[[int], AbstractAsyncContextManager[Ask]] = asking,
    ) -> None:
        """`clock`: seconds that only go forward."""
        self._config, self._cluster = config, cluster
        self._clock, self._sleep, self._pages = clock, sleep, pages
        self._api = Paced(api, Allowance(1, WRITES_A_MINUTE, clock, sleep))
        self._asks = Allowance(AT_ONCE, ASKS_A_MINUTE, clock, sleep)
        self._pods: dict[str, _Pod] = {}
        self._listed: set[str] | None = None
        self._due: list[tuple[float, int, _Pod]] = []
        self._order = count()
        self._news, self._renewals = _Turns(), _Turns()
        self._off = False

    def __len__(self) -> int:
        return len(self._pods)

    @property
    def is_on(self) -> bool:
        """Whether pods are asked at all."""
        config = self._config()
        return not self._off and (config.value(ModelPuller).events or bool(config.webhook.overrides))

    # --- a reflector's sink ------------------------------------------------------------------------

    def begin(self) -> None:
        self._listed = set()

    def put(self, item: Json) -> None:
        uid = text(item, "metadata", "uid")
        port = status_port(item)
        running = text(item, "status", "phase") == "Running" and not text(
            item, "metadata", "deletionTimestamp"
        )
        address = text(item, "status", "podIP")
        if port is None or not uid or not running or not address:
            self._forget(uid)
            return
        if self._listed is not None:
            self._listed.add(uid)
        known = self._pods.get(uid)
        if known is not None:
            known.address, known.labels = address, dict(labels_of(item))
            return
        namespace, name = text(item, "metadata", "namespace"), text(item, "metadata", "name")
        pod = self._pods[uid] = _Pod(uid, namespace, name, address, port, dict(labels_of(item)))
        self._ask_in(pod, 0)

    def commit(self) -> None:
        for uid in self._pods.keys() - (self._listed or set()):
            self._forget(uid)
        self._listed = None

    def remove(self, item: Json) -> None:
        self._forget(text(item, "metadata", "uid"))

    def lost(self, error: ApiError) -> None:
        pass

    def _forget(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._news.drop(pod)
            self._renewals.drop(pod)

    # --- the work ----------------------------------------------------------------------------------

    def clear(self) -> None:
        """Another process leads: ask and write nothing."""
        for uid in list(self._pods):
            self._forget(uid)
        self._due.clear()

    async def run(self) -> None:
        """Ask and write, until cancelled. Without pods there is nothing to do."""
        self._due.clear()  # what an earlier run left unfinished is asked again
        for pod in self._pods.values():
            self._ask_in(pod, 0)
        async with self._pages(AT_ONCE) as ask, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write())
            slots = asyncio.Semaphore(AT_ONCE)
            while True:
                pod = await self._next()
                await self._asks.take()
                await slots.acquire()
                task = tasks.create_task(self._see(ask, pod))
                task.add_done_callback(lambda _: slots.release())

    def _ask_in(self, pod: _Pod, seconds: float) -> None:
        heapq.heappush(self._due, (self._clock() + seconds, next(self._order), pod))

    async def _next(self) -> _Pod:
        """The next pod to ask, once it is due."""
        while True:
            wait = self._due[0][0] - self._clock() if self._due else _IDLE_SECONDS
            if wait > 0:
                await self._sleep(min(wait, _IDLE_SECONDS))
                continue
            pod = heapq.heappop(self._due)[2]
            if self._pods.get(pod.uid) is pod:
                return pod

    async def _see(self, ask: Ask, pod: _Pod) -> None:
        """Ask a pod, and queue it if there is something to write."""
        try:
            if not self._wanted(pod):
                self._ask_in(pod, SETTLED_SECONDS)
                return
            page = await ask(pod.address, pod.port)
        except Unanswered as why:
            pause = min(UNSETTLED_SECONDS * 2**pod.misses, LONGEST_SILENCE)
            pod.misses = min(pod.misses + 1, 10)
            log.debug("a puller gave no status", namespace=pod.namespace, pod=pod.name, why=str(why))
            self._ask_in(pod, spread(pause))
            return
        except Exception:  # a bug of ours must not stop the others from being asked
            log.exception("a puller can't be asked", namespace=pod.namespace, pod=pod.name)
            self._ask_in(pod, LONGEST_SILENCE)
            return
        pod.misses = 0
        pod.take(page)
        self._ask_in(pod, spread(SETTLED_SECONDS if page.loaded == page.total else UNSETTLED_SECONDS))
        if self._pods.get(pod.uid) is not pod:
            return
        if pod.news != (pod.reported or ""):
            self._news.add(pod)
        elif pod.reported and self._clock() - pod.reported_at >= RENEW_SECONDS:
            self._renewals.add(pod)

    def _wanted(self, pod: _Pod) -> bool:
        """Whether the policy in force wants Events about the pod."""
        config = self._config()
        if self._off or not config.webhook.namespaces.covers(pod.namespace):
            return False
        obj = {"metadata": {"namespace": pod.namespace, "name": pod.name, "labels": pod.labels}}
        labels = Facts(pod.namespace, self._cluster).namespace_labels()
        effective = config.effective(obj, pod.namespace, labels)
        return effective.policy_mode(MUTATOR) is not Mode.OFF and effective.settings(ModelPuller).events

    async def _write(self) -> None:
        """Write the Events, one after the other."""
        pause = _IDLE_SECONDS
        while True:
            pod = self._news.next() or self._renewals.next()
            if pod is None:
                await self._sleep(_IDLE_SECONDS)
                continue
            try:
                await self._report(pod)
                pause = _IDLE_SECONDS
            except ApiError as error:
                # The pod is asked again in a minute, and queued if the reason is still there.
                self._note(error)
                if error.status in (0, 429) or error.status >= 500:
                    await self._sleep(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)

    def _note(self, error: ApiError) -> None:
        if is_missing_right(error):
            self._off = True
            log.error("no Events about models until the next start: a right is missing", error=str(error))
        else:
            log.info("an Event about models can't be written", error=str(error))

    async def _report(self, pod: _Pod) -> None:
        news = pod.news
        regarding = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
        }
        if news:
            await events.record(self._api, regarding, FAILED, failure(pod.failed, pod.total), key=news)
        elif pod.reported:
            message = f"No model fails any more: {pod.loaded} of {pod.total} are loaded"
            await events.record(self._api, regarding, RECOVERED, message, kind="Normal", key=RECOVERED)
        pod.reported, pod.reported_at = news, self._clock()


def failure(failed: dict[str, Unloaded], total: int) -> str:
    """The models that fail, in one sentence: `2 of 40 models failed: a: NotFound: …; b: …`."""
    named = list(failed.values())[:_NAMED]
    # An Event has 1,024 characters: each model gets its share.
    room = (events.LONGEST_MESSAGE - 100) // len(named)
    reasons = "; ".join(
        ": ".join(part for part in (each.name, each.reason, each.message) if part)[:room] for each in named
    )
    more = f"; and {len(failed) - len(named)} more" if len(failed) > len(named) else ""
    return f"{len(failed)} of {max(total, len(failed))} models failed: {reasons}{more}"
