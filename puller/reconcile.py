"""The loop: keeps every model's actual state equal to its desired state.

The queue holds names of models, not events. An event (an edit, the end of a step, a server that restarted, a
timer) only marks models as dirty, and `plan.next_step` decides by the whole state. One step per model is in
flight, and a limited number of each kind; the others wait by priority. A download that waits for another
puller gives its slot back in the meantime.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice

from puller import config, plan
from puller.actions import Actions
from puller.log import logger
from puller.model_config import LIST_KEY, DesiredModels, carry_over, parse
from puller.options import PullerOptions
from puller.plan import NEVER, Failure, InFlight, Loaded, ModelStep, PlannedModel, next_step, wake_at
from puller.reasons import SERVER_SILENT, StatusReason, StepError
from puller.servers.base import ModelServer, ServerHealth
from puller.status import PullerStatus
from puller.storage.base import in_thread
from puller.storage.fetch import Storage
from puller.store import ModelStore, StoreBusyError, Stored

_SLOT = {
    ModelStep.DOWNLOAD: "downloads",
    ModelStep.LOAD: "loads",
    ModelStep.UNLOAD: "loads",
    ModelStep.CHECK: "checks",
    ModelStep.DELETE: "checks",
    ModelStep.DISCARD: "checks",
}
_CHECKS = 16
"""Checks, and deletions, at a time."""
_FINISHED_ON_STOP = (ModelStep.LOAD, ModelStep.UNLOAD, ModelStep.DELETE, ModelStep.CANCEL)
_FALLBACK_STEPS = (ModelStep.LOAD, ModelStep.CHECK)
_SERVER_STEPS = (ModelStep.LOAD, ModelStep.UNLOAD, ModelStep.CHECK)
_CHECK_ALL_INTERVAL = 5.0
_MAX_EXPONENT = 20
_HEARTBEAT = 5.0
"""The loop runs at least this often (seconds), also when idle, for /healthz."""


class Reconciler:
    """Owns the models. `run()` until `stop()`."""

    def __init__(self, options: PullerOptions, server: ModelServer, storage: Storage) -> None:
        self.options = options
        self.models: dict[str, PlannedModel] = {}
        self.status = PullerStatus(options)
        self.health = ServerHealth.HUNG
        self._store = ModelStore(options.model_dir)
        self._server = server
        self.actions = Actions(self._store, storage, server, self._declared_models, self._yield_slot)
        self._store_seen = self._writable = False
        self._open_attempts = 0
        self._config: DesiredModels | None = None
        self._dirty: set[str] = set()
        self._queue = WorkQueue(
            {"downloads": options.num_workers, "loads": options.load_workers, "checks": _CHECKS}
        )
        self._timers = Timers()
        self._tasks: dict[str, asyncio.Task[Failure | None]] = {}
        self._without_slot: dict[str, asyncio.Event] = {}
        """Downloads in flight that gave their slot back. The event is set when they have one again."""
        self._wake = asyncio.Event()
        self._probe_now = asyncio.Event()
        self._next_checks: Iterator[str] = iter(())
        self._all_checked_at = -NEVER
        self._stopping = False

    async def run(self) -> None:
        """Converge until `stop` is called, then finish steps within the grace period and clean up the
        disk."""
        endless = (self._publish_status, self._follow_config, self._follow_server, self._resync)
        helpers = [asyncio.create_task(_restarted(helper)) for helper in endless]
        helpers.append(asyncio.create_task(self._open_store()))
        try:
            await self._loop()
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await self._shut_down()

    def stop(self) -> None:
        """Start no more steps. Safe to call from a signal handler of the event loop."""
        self._stopping = True
        self._wake.set()

    def apply(self, desired: DesiredModels) -> None:
        """Make this the desired state. Unreadable parts keep their previous content."""
        new = carry_over(desired, self._config or DesiredModels())
        now = time.monotonic()
        refused = new.refused
        for name in new.models.keys() | self.models.keys():
            model = self.models.get(name) or self.models.setdefault(name, PlannedModel(name))
            spec = new.models.get(name)
            retained = spec is None and (new.blind or name in refused)
            if (spec, retained) != (model.desired, model.retained) or self._config is None:
                model.desired, model.retained = spec, retained
                if not (model.listed or model.available):
                    model.checked = False  # while it was listed, "not ready" was enough of an answer
                _mark_superseded(model, now)
                self._dirty.add(name)
        self._config = new
        self._retry_memory()
        self.status.configured(new)
        self._wake.set()

    async def _open_store(self) -> None:
        """Open the model directory, with retries. Until it can be written, models that are complete there
        are loaded, and the others fail."""
        while True:
            try:
                await in_thread(self._store.open)
                found = await in_thread(self._store.audit)
            except Exception as error:  # bugs are also reported and retried: the process continues
                expected = isinstance(error, OSError | StoreBusyError)
                message = str(error) if expected else f"{type(error).__name__}: {error}"
                self._open_attempts += 1
                self.status.model_dir_error = message
                logger.warning("model directory not usable", error=message, attempts=self._open_attempts)
                busy = isinstance(error, StoreBusyError)  # the other puller loads what is there
                self._audited({} if busy else await in_thread(self._store.complete))
                await asyncio.sleep(self._backoff(min(self._open_attempts, 4)))
                continue
            self.status.model_dir_error = ""
            self.status.was_ready = await in_thread(self._store.was_ready, self.options.pod_uid)
            self._writable = True
            self._audited(found)
            return

    def _audited(self, found: Mapping[str, Stored]) -> None:
        """Take over what is in the model directory, and plan all models again."""
        known = self._config
        for name in found.keys() - self.models.keys():
            retained = known is None or known.blind or name in known.refused
            if retained or self._writable or not self._store_seen:
                self.models[name] = PlannedModel(name, retained=retained)
        for name, model in self.models.items():
            stored = found.get(name)
            if model.in_flight is None and (stored.spec if stored else None) != model.stored:
                self.actions.set_stored(model, stored)
            if model.failure is not None and model.failure.reason is StatusReason.MODEL_DIR_UNUSABLE:
                model.failure = None
        self._store_seen = True
        self._dirty.update(self.models)
        self._wake.set()

    async def _loop(self) -> None:
        while not self._stopping:
            self._wake.clear()
            now = time.monotonic()
            self._dirty.update(self._timers.due(now))
            if self._config is not None and self._store_seen:
                while self._dirty:
                    self._plan_step(self._dirty.pop(), now)
                self._start_steps(now)
            self.status.loop_ran(self.health)
            await self._sleep(self._timers.pause(time.monotonic()))

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            # wait_for may lose a cancellation before Python 3.12
            async with asyncio.timeout(min(max(seconds, 0), _HEARTBEAT)):
                await self._wake.wait()

    def _plan_step(self, name: str, now: float) -> None:
        """Decide the next step of one model, and queue it."""
        model = self.models.get(name)
        if model is None:
            return
        if plan.failure_obsolete(model, self.health):
            model.failure = None
        step = next_step(model, self.health, now)
        if step is ModelStep.CANCEL:
            model.in_flight = InFlight(ModelStep.CANCEL)
            self._tasks[name].cancel()
        elif step is ModelStep.FORGET or (step is ModelStep.DELETE and not self._writable):
            del self.models[name]
            self.status.removed(name)
            return
        elif step is ModelStep.DOWNLOAD and not self._writable:
            message = f"the model directory cannot be used: {self.status.model_dir_error}"
            unusable = StatusReason.MODEL_DIR_UNUSABLE
            model.failure = Failure(step, model.desired, self._open_attempts, NEVER, unusable, message)
            self._dirty.add(name)  # the present version may have to be loaded
        elif step is not None:
            failure = model.failure
            last = failure is not None and failure.step is step and failure.attempts > 1
            self._queue.push(_SLOT[step], _priority(model), name, last=last)
        if now < (when := wake_at(model, self.health, now)) < NEVER:
            self._timers.arm(name, when)
        self.status.report(model, now)

    def _start_steps(self, now: float) -> None:
        """Start queued steps while slots are free. The step is decided again: the state may have changed. A
        model whose step does not start is planned again, since nothing else may wake it up."""
        used: int | None = None
        for slot, name in self._queue.startable():
            if slot == "downloads" and name in self._without_slot:
                self._queue.take(slot)
                self._without_slot.pop(name).set()
                continue
            model = self.models.get(name)
            step = next_step(model, self.health, now) if model else None
            if model is None or step is None or _SLOT.get(step) != slot:
                self._plan_again(name)
                continue
            before = model.memory
            if step is ModelStep.LOAD and self.options.max_memory:
                used = sum(each.memory for each in self.models.values()) if used is None else used
                failure = plan.over_memory(model, used - before, self.options.max_memory)
                if failure is not None:
                    if model.failure is not None and not model.current:
                        self._fallback_failed(model, failure)
                    else:
                        model.failure = failure
                    self._plan_again(name)
                    continue
            model.in_flight = InFlight(step, model.desired if step is ModelStep.DOWNLOAD else None)
            if used is not None:
                used += model.memory - before
            self._queue.take(slot)
            task = self._tasks[name] = asyncio.create_task(self._run_step(step, model))
            task.add_done_callback(partial(self._step_ended, step, model, model.loaded, now))
            self.status.report(model, now)

    def _plan_again(self, name: str) -> None:
        self._dirty.add(name)
        self._wake.set()

    async def _yield_slot(self, name: str, seconds: float) -> None:
        """Give a download's slot to other models for some seconds, then queue for a slot again."""
        slot_taken = self._without_slot[name] = asyncio.Event()
        self._queue.give_back("downloads")
        self._wake.set()
        await asyncio.sleep(seconds)
        self._queue.push("downloads", _priority(self.models[name]), name)
        self._wake.set()
        await slot_taken.wait()

    async def _run_step(self, step: ModelStep, model: PlannedModel) -> Failure | None:
        try:
            await self.actions.run(step, model)
        except StepError as error:
            return self._failure(step, model, error.reason, str(error))
        except OSError as error:
            return self._failure(step, model, StatusReason.MODEL_DIR_UNUSABLE, str(error))
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the storage library is not an Exception
            logger.exception("step failed unexpectedly", model=model.name, step=step.value)
            return self._failure(step, model, StatusReason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
        return None

    def _step_ended(
        self,
        step: ModelStep,
        model: PlannedModel,
        loaded: Loaded,
        began: float,
        task: asyncio.Task[Failure | None],
    ) -> None:
        """Record the end of a step that succeeded, failed or was cancelled, perhaps before it began.
        `loaded`: the model's state before the step."""
        failure = None if task.cancelled() else task.result()
        model.in_flight = None
        if self._without_slot.pop(model.name, None) is None:
            self._queue.give_back(_SLOT[step])
        del self._tasks[model.name]
        if (
            failure is not None
            and step in _FALLBACK_STEPS
            and model.failure is not None
            and not model.current
        ):
            self._fallback_failed(model, failure)
        elif failure is not None or (model.failure is not None and model.failure.step is step):
            model.failure = failure
        if not task.cancelled():
            self.status.step_ended(step, model, time.monotonic() - began)
        if step is ModelStep.UNLOAD:
            self._retry_memory()
            model.checked = model.failure is None  # an unload that failed may still have had its effect
        if step is ModelStep.CHECK and loaded is Loaded.YES and not model.available:
            self._check_all()
        if step in _SERVER_STEPS and failure is not None and failure.reason in SERVER_SILENT:
            self._probe_now.set()
        self._plan_again(model.name)

    def _fallback_failed(self, model: PlannedModel, failure: Failure) -> None:
        """The present version is tried again later. The failure of the download stays, with its pauses."""
        model.fallback_at = time.monotonic() + self.options.backoff_max
        logger.warning("present version not loaded", model=model.name, error=failure.message)

    def _failure(self, step: ModelStep, model: PlannedModel, reason: StatusReason, message: str) -> Failure:
        last = model.failure
        repeated = last is not None and last.step is step and plan.same_content(last.spec, model.desired)
        attempts = last.attempts + 1 if last is not None and repeated else 1
        retry_at = time.monotonic() + self._backoff(attempts)
        return Failure(step, model.desired, attempts, retry_at, reason, message)

    def _backoff(self, attempts: int) -> float:
        delay = self.options.backoff_initial * 2.0 ** min(attempts - 1, _MAX_EXPONENT)
        return min(delay, self.options.backoff_max) * random.uniform(0.5, 1)  # noqa: S311  (jitter)

    def _retry_memory(self) -> None:
        """Retry models that did not fit into memory. They stay Failed until loaded: most fail again."""
        for model in self.models.values():
            if model.failure is not None and model.failure.reason is StatusReason.OVER_MAX_MEMORY:
                model.failure = replace(model.failure, retry_at=0.0)
                self._dirty.add(model.name)

    def _declared_models(self) -> frozenset[str]:
        """The models for a declarative server: those on disk that it has, may have, or is to load now."""
        return frozenset(
            model.name
            for model in self.models.values()
            if model.stored is not None and (model.available or not model.checked or model.loading)
        )

    async def _follow_config(self) -> None:
        last: dict[str, str] | None = None
        async for _ in config.changes(self.options.config_dir, self.options.config_poll):
            try:
                files = await in_thread(config.read, self.options.config_dir)
            except config.ConfigUnreadableError as error:
                if self.status.config_error != str(error):
                    logger.warning("config not readable", error=str(error))
                self.status.config_error = str(error)
                if self._config is None:  # the listed models are unknown: keep and serve the present ones
                    self.apply(DesiredModels(unreadable=frozenset({LIST_KEY})))
                continue
            self.status.config_error = ""
            if files != last:
                last = files
                self.apply(await in_thread(parse, files, self.options.schemes))

    async def _follow_server(self) -> None:
        while True:
            self._probe_now.clear()
            health = await self._server.health()
            if health is not self.health:
                self._health_changed(health)
            elif health is ServerHealth.UP:
                self._check_some()
            pause = self.options.server_poll / (1 if health is ServerHealth.UP else 4)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):  # wait_for may lose a cancellation before Python 3.12
                    await self._probe_now.wait()

    def _health_changed(self, health: ServerHealth) -> None:
        logger.info("model server", health=health.value)
        self.health = health
        if health is ServerHealth.DOWN:
            self.actions.server_stopped()
        for model in self.models.values():
            if health is ServerHealth.DOWN:
                model.loaded = Loaded.NO
            if health is not ServerHealth.HUNG:
                model.checked = model.first_install = False
            failure = model.failure
            if (
                health is ServerHealth.UP
                and failure is not None
                and failure.reason is StatusReason.SERVER_UNAVAILABLE
            ):
                model.failure = None
        self._dirty.update(self.models)
        self._retry_memory()
        self._wake.set()

    def _check_some(self) -> None:
        """Check a few loaded models in turn, each once per resync. So a server that restarted between two
        probes is noticed within a few seconds."""
        count = -(-len(self.models) * self.options.server_poll // max(self.options.resync, 1))
        names = list(islice(self._next_checks, int(count)))
        if not names:
            self._next_checks = iter(sorted(self.models))
            names = list(islice(self._next_checks, int(count)))
        self._check(names)

    def _check_all(self) -> None:
        """The server lost a model without an unload, so it restarted: check all models."""
        if time.monotonic() - self._all_checked_at > _CHECK_ALL_INTERVAL:
            self._all_checked_at = time.monotonic()
            self._check(self.models)

    def _check(self, names: Iterable[str]) -> None:
        for name in names:
            model = self.models.get(name)
            if model is not None and model.in_flight is None and model.available:
                model.checked = False
                self._dirty.add(name)
        self._wake.set()

    async def _resync(self) -> None:
        """Every `--resync` seconds, compare the disk with `models`, unless the directory is another puller's,
        or `_open_store` still reads it."""
        while True:
            await asyncio.sleep(self.options.resync)
            for name, model in list(self.models.items()) if self._writable else ():
                if model.in_flight is None:
                    expected = model.stored
                    stored = await in_thread(self._store.read, name)
                    unchanged = model.in_flight is None and model.stored is expected
                    if unchanged and (stored.spec if stored else None) != expected:
                        logger.warning("model directory changed behind our back", model=name)
                        self.actions.set_stored(model, stored)
                        model.loaded = Loaded.STALE if model.loaded is Loaded.YES else model.loaded
            self._dirty.update(self.models)
            self._wake.set()

    async def _publish_status(self) -> None:
        """Publish the status once a second."""
        while True:
            was_ready = self.status.was_ready
            await self.status.publish(self.models, self.actions.fetches)
            if self.status.was_ready and not was_ready and self.options.pod_uid:
                with suppress(OSError):
                    await in_thread(self._store.record_ready, self.options.pod_uid)
            await asyncio.sleep(1)

    async def _shut_down(self) -> None:
        """Cancel downloads; calls to the server and deletions may finish within the grace period."""
        self._stopping = True
        for name, task in self._tasks.items():
            in_flight = self.models[name].in_flight
            if in_flight is None or in_flight.step not in _FINISHED_ON_STOP:
                task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=self.options.grace)
        unfinished = list(self._tasks.values())
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        with suppress(Exception):
            await in_thread(self._store.sweep)
        for model in self.models.values():
            self.status.report(model, time.monotonic())
        await self.status.publish(self.models, self.actions.fetches)
        await self.actions.storage.close()
        self._store.close()


async def _restarted(helper: Callable[[], Awaitable[None]]) -> None:
    """Run a helper again after a bug, which is logged: the puller must not stop watching."""
    while True:
        try:
            await helper()
        except Exception:
            logger.exception("helper failed unexpectedly", helper=helper.__name__)
        await asyncio.sleep(1)


def _priority(model: PlannedModel) -> int:
    return model.desired.priority if model.desired is not None else 0


def _mark_superseded(model: PlannedModel, now: float) -> None:
    """Note when the download in flight stopped being for the desired content."""
    download = model.in_flight
    if download is not None and download.step is ModelStep.DOWNLOAD:
        current = plan.same_content(download.spec, model.desired)
        since = now if download.superseded_at is None else download.superseded_at
        model.in_flight = replace(download, superseded_at=None if current else since)


# --- names that wait ------------------------------------------------------------------------------


class WorkQueue:
    """Names that wait for slots of several kinds, by descending priority, then by name. Those that failed
    repeatedly come last, each in its turn: however many fail, and for however long, the others get a slot."""

    def __init__(self, slots: dict[str, int]) -> None:
        self._free = dict(slots)
        self._waiting: dict[str, list[tuple[bool, int, str]]] = {slot: [] for slot in slots}
        self._queued: set[tuple[str, str]] = set()
        self._turns = 0

    def push(self, slot: str, priority: int, name: str, *, last: bool = False) -> None:
        """Queue a name, unless it is queued already. `last`: it failed repeatedly."""
        if (slot, name) not in self._queued:
            self._queued.add((slot, name))
            self._turns += 1
            heapq.heappush(self._waiting[slot], (last, self._turns if last else -priority, name))

    def startable(self) -> Iterator[tuple[str, str]]:
        """(slot, name), as long as slots are free and names wait. Call `take` to use the slot."""
        for slot, waiting in self._waiting.items():
            while waiting and self._free[slot] > 0:
                name = heapq.heappop(waiting)[2]
                self._queued.discard((slot, name))
                yield slot, name

    def take(self, slot: str) -> None:
        self._free[slot] -= 1

    def give_back(self, slot: str) -> None:
        self._free[slot] += 1


class Timers:
    """Times for names; in seconds, monotonic."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._armed: dict[str, float] = {}

    def arm(self, name: str, when: float) -> None:
        """Set the time of a name; it replaces an earlier one."""
        if self._armed.get(name) != when:
            self._armed[name] = when
            heapq.heappush(self._heap, (when, name))

    def due(self, now: float) -> Iterator[str]:
        """The names whose time has come, each once."""
        while self._heap and self._heap[0][0] <= now:
            when, name = heapq.heappop(self._heap)
            if self._armed.get(name) == when:
                del self._armed[name]
                yield name

    def pause(self, now: float) -> float:
        """Seconds until the next time; infinity if there is none."""
        return self._heap[0][0] - now if self._heap else float("inf")
