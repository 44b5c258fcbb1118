"""The loop: keeps every model's actual state equal to its desired state.

A work queue of model names, not of events: each event (an edit, a step that ended, a server that came
back, a timer) only marks names as worth another look, and `plan.next_step` looks at the whole state.
One step per model is in flight, and a bounded number of each kind; the rest wait by priority. A download
that waits for another puller gives its slot back in the meantime.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice

from puller import config, plan
from puller.actions import Actions
from puller.log import logger
from puller.options import Options
from puller.plan import Act, Doing, Failure, Loaded, Model, next_step, wake_at
from puller.reasons import SERVER_SILENT, Reason
from puller.servers.base import Health, ModelServer, ServerError
from puller.spec import LIST_KEY, Desired, carry_over, parse
from puller.status import Status
from puller.storage.base import StorageError, in_thread
from puller.storage.fetch import Storage
from puller.store import ModelStore, StoreBusyError
from puller.workqueue import Timers, WorkQueue

_SLOT = {
    Act.DOWNLOAD: "downloads",
    Act.LOAD: "loads",
    Act.UNLOAD: "loads",
    Act.CHECK: "checks",
    Act.DELETE: "checks",
    Act.DISCARD: "checks",
}
_LEFT_ALONE = (Act.LOAD, Act.UNLOAD, Act.DELETE, Act.CANCEL)
_SERVER_ACTS = (Act.LOAD, Act.UNLOAD, Act.CHECK)
_DOUBT_INTERVAL = 5.0
_MAX_EXPONENT = 20
_HEARTBEAT = 5.0
"""The loop turns this often (seconds) even when there is nothing to do, for /healthz to see."""


class Reconciler:
    """Owns the models. `run()` until `stop()`."""

    def __init__(self, options: Options, server: ModelServer, storage: Storage) -> None:
        self.options = options
        self.models: dict[str, Model] = {}
        self.status = Status(options)
        self.health = Health.HUNG
        self._store = ModelStore(options.model_dir)
        self._server = server
        self.actions = Actions(self._store, storage, server, self._complete, self._pause)
        self._config: Desired | None = None
        self._dirty: set[str] = set()
        self._queue = WorkQueue(
            {"downloads": options.downloads, "loads": options.loads, "checks": options.checks}
        )
        self._timers = Timers()
        self._tasks: dict[str, asyncio.Task[Failure | None]] = {}
        self._paused: dict[str, asyncio.Event] = {}
        """Downloads in flight without a slot, each with the event that is set when it has one again."""
        self._awake = asyncio.Event()
        self._probe_now = asyncio.Event()
        self._rolling: Iterator[str] = iter(())
        self._doubted_at = float("-inf")
        self._stopping = False

    async def run(self) -> None:
        """Converge until `stop` is called; then finish what the grace allows and leave the disk clean."""
        ticker = asyncio.create_task(_forever(self._tick))
        helpers = [ticker]
        try:
            if await self._open():
                helpers += [
                    asyncio.create_task(_forever(helper))
                    for helper in (self._follow_config, self._follow_server, self._resync)
                ]
                await self._loop()
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await self._wind_down()

    def stop(self) -> None:
        """Take no more work. Safe to call from a signal handler of the loop."""
        self._stopping = True
        self._awake.set()

    def apply(self, desired: Desired) -> None:
        """Make this the desired state, but for what cannot be read in it."""
        new = carry_over(desired, self._config or Desired())
        now = time.monotonic()
        refused = new.refused
        for name in new.models.keys() | self.models.keys():
            model = self.models.get(name) or self.models.setdefault(name, Model(name))
            wanted = new.models.get(name)
            held = wanted is None and (new.blind or name in refused)
            if (wanted, held) != (model.wanted, model.held) or self._config is None:
                model.wanted, model.held = wanted, held
                model.doing = _superseded(model, now)
                self._dirty.add(name)
        self._config = new
        self._retry_memory()
        self.status.configured(new)
        self._awake.set()

    async def _open(self) -> bool:
        """Open the model directory, however long that takes; False if `stop` is called meanwhile."""
        attempts = 0
        while not self._stopping:
            try:
                await in_thread(self._store.open)
                audit = await in_thread(self._store.audit)
            except Exception as error:  # a bug, too, is waited for and reported: it ends no process
                attempts += 1
                expected = isinstance(error, OSError | StoreBusyError)
                trouble = str(error) if expected else f"{type(error).__name__}: {error}"
                self.status.model_dir_trouble = trouble
                logger.warning("model directory not usable", error=trouble, attempts=attempts)
                await self._sleep(self._backoff(min(attempts, 4)))
                continue
            self.status.model_dir_trouble = ""
            self.status.was_ready = await in_thread(partial(self._store.was_ready, self.options.pod_uid))
            for name, stored in audit.items():
                self.models[name] = Model(name, held=True)
                self.actions.found(self.models[name], stored)
            return True
        return False

    async def _loop(self) -> None:
        while not self._stopping:
            self._awake.clear()
            now = time.monotonic()
            self._dirty.update(self._timers.due(now))
            if self._config is not None:
                while self._dirty:
                    self._look(self._dirty.pop(), now)
                self._start(now)
            self.status.turned(self.health)
            await self._sleep(self._timers.pause(time.monotonic()))

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._awake.wait(), min(max(seconds, 0), _HEARTBEAT))

    def _look(self, name: str, now: float) -> None:
        """Decide the next step of one model, and queue it."""
        model = self.models.get(name)
        if model is None:
            return
        if plan.outlived(model, self.health):
            model.failure = None
        step = next_step(model, self.health, now)
        if step is Act.CANCEL:
            model.doing = Doing(Act.CANCEL)
            self._tasks[name].cancel()
        elif step is Act.FORGET:
            del self.models[name]
            self.status.forgotten(name)
            return
        elif step is not None:
            self._queue.push(_SLOT[step], _priority(model), name)
        elif now < (when := wake_at(model, self.health)) < float("inf"):
            self._timers.arm(name, when)
        self.status.note(model, now)

    def _start(self, now: float) -> None:
        """Begin queued steps while slots are free. A queued step is decided again: things change."""
        used: int | None = None
        for slot, name in self._queue.startable():
            if slot == "downloads" and name in self._paused:
                self._queue.take(slot)
                self._paused.pop(name).set()
                continue
            model = self.models.get(name)
            step = next_step(model, self.health, now) if model else None
            if model is None or step is None or _SLOT.get(step) != slot:
                continue
            if step is Act.LOAD and self.options.max_memory:
                used = sum(map(plan.memory_of, self.models.values())) if used is None else used
                others = used - plan.memory_of(model)
                if refusal := plan.over_memory(model, others, self.options.max_memory):
                    model.failure = refusal
                    self.status.note(model, now)
                    continue
                model.doing = Doing(step)
                used = others + plan.memory_of(model)
            model.doing = Doing(step, model.wanted if step is Act.DOWNLOAD else None)
            self._queue.take(slot)
            task = self._tasks[name] = asyncio.create_task(self._attempt(step, model))
            task.add_done_callback(partial(self._ended, step, model, model.loaded, now))
            self.status.note(model, now)

    async def _pause(self, name: str, seconds: float) -> None:
        """Give a download's slot to other models for some seconds, then wait for one as they do."""
        turn = self._paused[name] = asyncio.Event()
        self._queue.give_back("downloads")
        self._awake.set()
        await asyncio.sleep(seconds)
        self._queue.push("downloads", _priority(self.models[name]), name)
        self._awake.set()
        await turn.wait()

    async def _attempt(self, step: Act, model: Model) -> Failure | None:
        """One step; None when it succeeded."""
        try:
            await self.actions.run(step, model)
        except (StorageError, ServerError) as error:
            return self._failed(step, model, error.reason, str(error))
        except OSError as error:
            return self._failed(step, model, Reason.MODEL_DIR_UNUSABLE, str(error))
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the storage library is no Exception
            logger.exception("step failed unexpectedly", model=model.name, step=step.value)
            return self._failed(step, model, Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
        return None

    def _ended(
        self, step: Act, model: Model, was: Loaded, began: float, task: asyncio.Task[Failure | None]
    ) -> None:
        """The bookkeeping of a step that succeeded, failed or was cancelled (perhaps before it began)."""
        failure = None if task.cancelled() else task.result()
        model.doing = None
        if self._paused.pop(model.name, None) is None:
            self._queue.give_back(_SLOT[step])
        del self._tasks[model.name]
        if failure is not None or (model.failure is not None and model.failure.act is step):
            model.failure = failure
        if not task.cancelled():
            self.status.finished(step, model, time.monotonic() - began)
        self._after(step, model, was)
        self._dirty.add(model.name)
        self._awake.set()

    def _after(self, step: Act, model: Model, was_loaded: Loaded) -> None:
        """Apply the effects of one model's step on the others and on the server."""
        if step is Act.UNLOAD:
            self._retry_memory()
            model.checked = model.failure is None  # an unload that failed may have been carried out
        if step is Act.CHECK and was_loaded is Loaded.YES and not model.available:
            self._doubt()
        if step in _SERVER_ACTS and model.failure is not None and model.failure.reason in SERVER_SILENT:
            self._probe_now.set()

    def _failed(self, step: Act, model: Model, reason: Reason, message: str) -> Failure:
        before = model.failure
        again = before is not None and before.act is step and plan.same(before.spec, model.wanted)
        attempts = before.attempts + 1 if again and before is not None else 1
        retry_at = time.monotonic() + self._backoff(attempts)
        return Failure(step, model.wanted, attempts, retry_at, reason, message)

    def _backoff(self, attempts: int) -> float:
        delay = self.options.backoff_initial * 2.0 ** min(attempts - 1, _MAX_EXPONENT)
        return min(delay, self.options.backoff_max) * random.uniform(0.5, 1)  # noqa: S311  (jitter)

    def _retry_memory(self) -> None:
        """Let the models that lacked memory try again. They stay Failed until loaded: most fail again."""
        for model in self.models.values():
            if model.failure is not None and model.failure.reason is Reason.OVER_MAX_MEMORY:
                model.failure = replace(model.failure, retry_at=0.0)
                self._dirty.add(model.name)

    def _complete(self) -> frozenset[str]:
        """The models for a declarative server: those on disk that it has, may have, or is to load now."""
        return frozenset(
            model.name
            for model in self.models.values()
            if model.stored is not None and (model.available or not model.checked or plan.loading(model))
        )

    async def _follow_config(self) -> None:
        last: dict[str, str] | None = None
        async for _ in config.changes(self.options.config_dir, self.options.config_poll):
            try:
                files = await in_thread(partial(config.read, self.options.config_dir))
            except config.ConfigUnreadableError as error:
                if self.status.config_trouble != str(error):
                    logger.warning("config not readable", error=str(error))
                self.status.config_trouble = str(error)
                if self._config is None:  # the wanted models are unknown: keep and serve the present ones
                    self.apply(Desired(unreadable=frozenset({LIST_KEY})))
                continue
            self.status.config_trouble = ""
            if files != last:
                last = files
                self.apply(await in_thread(partial(parse, files, self.options.schemes)))

    async def _follow_server(self) -> None:
        while True:
            self._probe_now.clear()
            health = await self._server.health()
            if health is not self.health:
                self._health_changed(health)
            elif health is Health.UP:
                self._check_some()
            pause = self.options.server_poll / (1 if health is Health.UP else 4)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._probe_now.wait(), pause)

    def _health_changed(self, health: Health) -> None:
        logger.info("model server", health=health.value)
        self.health = health
        if health is Health.DOWN:
            self.actions.server_gone()
        for model in self.models.values():
            if health is Health.DOWN:
                model.loaded = Loaded.NO
            if health is not Health.HUNG:
                model.checked = model.fresh = False
            if (
                health is Health.UP
                and model.failure is not None
                and model.failure.reason is Reason.SERVER_UNAVAILABLE
            ):
                model.failure = None
        self._dirty.update(self.models)
        self._retry_memory()
        self._awake.set()

    def _check_some(self) -> None:
        """Look at a few loaded models in turn, so that each is seen once per resync, and a server that
        restarted between two probes is found out within a few seconds."""
        count = -(-len(self.models) * self.options.server_poll // max(self.options.resync, 1))
        names = list(islice(self._rolling, int(count)))
        if not names:
            self._rolling = iter(sorted(self.models))
            names = list(islice(self._rolling, int(count)))
        self._recheck(names)

    def _doubt(self) -> None:
        """One model was dropped behind our back: the server restarted. Look at all of them."""
        if time.monotonic() - self._doubted_at > _DOUBT_INTERVAL:
            self._doubted_at = time.monotonic()
            self._recheck(self.models)

    def _recheck(self, names: list[str] | dict[str, Model]) -> None:
        for name in names:
            model = self.models.get(name)
            if model is not None and model.doing is None and model.loaded is not Loaded.NO:
                model.checked = False
                self._dirty.add(name)
        self._awake.set()

    async def _resync(self) -> None:
        """From time to time, compare the disk with our record of it."""
        while True:
            await asyncio.sleep(self.options.resync)
            for name, model in list(self.models.items()):
                if model.doing is None:
                    believed = model.stored
                    stored = await in_thread(partial(self._store.read, name))
                    untouched = model.doing is None and model.stored is believed
                    if untouched and (stored.spec if stored else None) != believed:
                        logger.warning("model directory changed behind our back", model=name)
                        self.actions.found(model, stored)
                        model.loaded = Loaded.STALE if model.loaded is Loaded.YES else model.loaded
            self._dirty.update(self.models)
            self._awake.set()

    async def _tick(self) -> None:
        """Publishes the status, at most once a second, as long as the loop turns."""
        while True:
            was_ready = self.status.was_ready
            await self.status.publish(self.models, self.actions.fetches)
            if self.status.was_ready and not was_ready and self.options.pod_uid:
                with suppress(OSError):
                    await in_thread(partial(self._store.note_ready, self.options.pod_uid))
            await asyncio.sleep(1)

    async def _wind_down(self) -> None:
        """Downloads end now; calls to the server and deletions may finish within the grace."""
        self._stopping = True
        for name, task in self._tasks.items():
            doing = self.models[name].doing
            if doing is None or doing.act not in _LEFT_ALONE:
                task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=self.options.grace)
        leftover = list(self._tasks.values())
        for task in leftover:
            task.cancel()
        await asyncio.gather(*leftover, return_exceptions=True)
        with suppress(Exception):
            await in_thread(self._store.sweep)
        for model in self.models.values():
            self.status.note(model, time.monotonic())
        await self.status.publish(self.models, self.actions.fetches)
        await self.actions.storage.close()
        self._store.close()


async def _forever(helper: Callable[[], Awaitable[None]]) -> None:
    """Begin again after a bug: a puller that no longer looks is worse than one that complains."""
    while True:
        try:
            await helper()
        except Exception:
            logger.exception("helper failed unexpectedly", helper=helper.__name__)
        await asyncio.sleep(1)


def _priority(model: Model) -> int:
    return model.wanted.priority if model.wanted is not None else 0


def _superseded(model: Model, now: float) -> Doing | None:
    """The step in flight, with the moment noted at which it ceased to be for the wanted content."""
    doing = model.doing
    if doing is None or doing.act is not Act.DOWNLOAD:
        return doing
    if plan.same(doing.spec, model.wanted):
        return Doing(doing.act, doing.spec)
    return Doing(doing.act, doing.spec, now if doing.superseded_at is None else doing.superseded_at)
