"""The steps for one model. Each method changes the disk or the server first and the Model last, so the Model
is still correct if the step fails or is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from puller.model_config import ModelSpec
from puller.plan import Loaded, ModelStep, PlannedModel, same_content
from puller.reasons import StatusReason
from puller.servers.base import ModelServer, ServerError, poll
from puller.storage.base import in_thread
from puller.storage.fetch import Fetch, Storage
from puller.store import ModelStore, Stored


@dataclass(frozen=True, slots=True)
class UnfinishedLoad:
    """A load whose end was not seen. `digest`: of the loaded tree. `first`: the server had no version of the
    model before, so if the model is ready later, this load succeeded."""

    digest: str
    first: bool


@dataclass
class Actions:
    """Carries out steps. `declared`: the models for a declarative server. `yield_slot`: gives the slot of a
    download to other models for some seconds."""

    store: ModelStore
    storage: Storage
    server: ModelServer
    declared: Callable[[], frozenset[str]]
    yield_slot: Callable[[str, float], Awaitable[None]]
    fetches: dict[str, Fetch] = field(default_factory=dict)
    load_wait: float = 5.0
    """Seconds to wait for an unfinished load before the next call."""
    _loaded_trees: set[str] = field(default_factory=set)
    """Models with a tree on disk that the server has loaded."""
    _unfinished: dict[str, UnfinishedLoad] = field(default_factory=dict)

    def set_stored(self, model: PlannedModel, stored: Stored | None) -> None:
        """Set the tree on disk of a model."""
        model.stored, model.size = (stored.spec, stored.size) if stored else (None, 0)
        self._loaded_trees.discard(model.name)
        if stored is None:
            self.storage.budget.release(model.name)
            return
        self.storage.budget.set_used(model.name, stored.size)
        if stored.loaded:
            self._loaded_trees.add(model.name)
        if stored.loading:
            self._unfinished[model.name] = UnfinishedLoad(stored.spec.digest, first=False)

    def server_stopped(self) -> None:
        self._unfinished.clear()

    async def run(self, step: ModelStep, model: PlannedModel) -> None:
        """Raises StorageError, ServerError or OSError."""
        methods = {
            ModelStep.DOWNLOAD: self.download,
            ModelStep.CHECK: self.check,
            ModelStep.LOAD: self.load,
            ModelStep.UNLOAD: self.unload,
            ModelStep.DELETE: self.delete,
            ModelStep.DISCARD: self.discard,
        }
        await methods[step](model)

    async def download(self, model: PlannedModel) -> None:
        """Fetch the desired tree. It replaces the present one unless the config changed meanwhile."""
        spec = model.desired
        if spec is None:
            return
        fetch = await self._fetch(model, spec)
        installing = False

        def install(tree: Path) -> Stored | None:
            nonlocal installing
            if not same_content(model.desired, spec):
                return None
            installing = True
            stored = self.store.install(spec, tree)
            self.store.discard(spec.name)
            return stored

        try:
            stored = await fetch.run(install)
        except asyncio.CancelledError:
            if installing:
                self.set_stored(model, await in_thread(self.store.read, spec.name))
            raise
        finally:
            if installing and model.loaded is Loaded.YES:
                model.loaded = Loaded.STALE
        if stored is not None:
            model.first_install = model.stored is None and not model.available
            self.set_stored(model, stored)
            self._forget_staged(model)

    async def check(self, model: PlannedModel) -> None:
        """Ask the server whether it has the model."""
        ready = await self.server.ready(model.name)
        if ready and self._unfinished.get(model.name) == UnfinishedLoad(_digest(model), first=True):
            del self._unfinished[model.name]
            await self._record_loaded(model)
        current = model.name in self._loaded_trees
        if not ready and not model.listed:  # it is forgotten next, so this must be certain
            ready = not await self.server.gone(model.name)
        model.loaded = (Loaded.YES if current else Loaded.STALE) if ready else Loaded.NO
        model.checked = True
        model.first_install = False

    async def load(self, model: PlannedModel) -> None:
        """Load the tree on disk into the server."""
        if model.first_install:
            await self.check(model)
        await self._declare()
        if not await self._unfinished_load_succeeds(model):
            await self._record_loading(model, True)
            try:
                await self.server.load(model.name, was_ready=model.available)
            except ServerError as error:
                if error.reason is StatusReason.SERVER_TIMEOUT:
                    self._unfinished[model.name] = UnfinishedLoad(_digest(model), first=not model.available)
                await self._record_loading(model, False)
                raise
        model.loaded = Loaded.YES
        await self._record_loaded(model)

    async def _record_loaded(self, model: PlannedModel) -> None:
        # The record is a file in the tree, so it needs no removal: another tree has none.
        with suppress(OSError):
            await in_thread(self.store.record_loaded, model.name)
        self._loaded_trees.add(model.name)

    async def _record_loading(self, model: PlannedModel, loading: bool) -> None:
        with suppress(OSError):
            await in_thread(self.store.record_loading, model.name, loading)

    async def _unfinished_load_succeeds(self, model: PlannedModel) -> bool:
        """Wait for a load that an earlier call, or an earlier run of the puller, began: two at once in the
        server would disturb each other. False if there is none, or it did not succeed in `load_wait`. Raises
        ServerError if the server does not answer."""
        load = self._unfinished.get(model.name)
        if load is None:
            return False
        observable = not model.available and load.digest == _digest(model)

        async def succeeded() -> bool:
            return observable and await self.server.ready(model.name)

        ready = await poll(succeeded, self.load_wait)
        self._unfinished.pop(model.name, None)
        return ready

    async def unload(self, model: PlannedModel) -> None:
        """Unload the model from the server, while its files still exist."""
        await self._declare()
        await self.server.unload(model.name)
        model.loaded = Loaded.NO

    async def delete(self, model: PlannedModel) -> None:
        """Delete the model from the disk."""
        await in_thread(self.store.remove, model.name)
        self.set_stored(model, None)
        self._unfinished.pop(model.name, None)

    async def discard(self, model: PlannedModel) -> None:
        """Delete a staged tree. If that fails, the next start deletes it."""
        with suppress(OSError):
            await in_thread(self.store.discard, model.name)
        self._forget_staged(model)

    async def _fetch(self, model: PlannedModel, spec: ModelSpec) -> Fetch:
        """The fetch of this content that an earlier attempt began, or a new one."""
        fetch = self.fetches.get(model.name)
        if fetch is None or fetch.spec.content != spec.content or fetch.files_lost:
            clean = model.staged or not self.store.root.exists()
            model.staged = True  # set before the first await, which may be cancelled
            if clean:
                await in_thread(self.store.prepare_staging, spec.name)
            yield_slot = partial(self.yield_slot, spec.name)
            fetch = Fetch(spec, self.store.staging(spec.name), self.storage, yield_slot)
            self.fetches[model.name] = fetch
        return fetch

    async def _declare(self) -> None:
        if self.server.declarative:
            await self.server.declare(self.declared())

    def _forget_staged(self, model: PlannedModel) -> None:
        fetch = self.fetches.pop(model.name, None)
        if fetch is not None:
            self.storage.budget.release(fetch.key)
        model.staged = False


def _digest(model: PlannedModel) -> str:
    """The digest of the tree on disk; empty without one."""
    return model.stored.digest if model.stored is not None else ""
