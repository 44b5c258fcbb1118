"""Carrying out one step for one model. Each method changes the world first and the Model last, so that
a step that fails, or is cancelled, leaves the Model telling the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from puller.plan import Act, Loaded, Model, same
from puller.reasons import Reason
from puller.servers.base import ModelServer, Pauses, ServerError
from puller.spec import ModelSpec
from puller.storage.base import in_thread
from puller.storage.fetch import Fetch, Storage
from puller.store import ModelStore, Stored


@dataclass(frozen=True, slots=True)
class Doubt:
    """A load whose end was not seen. `digest`: of the tree that it loads. `first`: the server had no version
    of the model when it began, so a version that it has later is this one."""

    digest: str
    first: bool


@dataclass
class Actions:
    """The hands of the reconciler. `complete` names what a declarative server is to have; `pause` lets other
    models use the slot of a download for some seconds."""

    store: ModelStore
    storage: Storage
    server: ModelServer
    complete: Callable[[], frozenset[str]]
    pause: Callable[[str, float], Awaitable[None]]
    fetches: dict[str, Fetch] = field(default_factory=dict)
    settle: float = 5.0
    """Seconds to wait for an abandoned load before the server gets the next call."""
    _noted: set[str] = field(default_factory=set)
    _in_doubt: dict[str, Doubt] = field(default_factory=dict)
    """Models whose load may still be going on in the server."""

    def found(self, model: Model, stored: Stored | None) -> None:
        """Take over what an audit saw on disk."""
        model.stored, model.size = (stored.spec, stored.size) if stored else (None, 0)
        self._noted.discard(model.name)
        if stored is None:
            self.storage.budget.release(model.name)
            return
        self.storage.budget.hold(model.name, stored.size)
        if stored.loaded:
            self._noted.add(model.name)
        if stored.loading:
            self._in_doubt[model.name] = Doubt(stored.spec.digest, first=False)

    def server_gone(self) -> None:
        """The server restarted: no load is in doubt any more."""
        self._in_doubt.clear()

    async def run(self, act: Act, model: Model) -> None:
        """Raises StorageError, ServerError or OSError."""
        steps = {
            Act.DOWNLOAD: self.download,
            Act.CHECK: self.check,
            Act.LOAD: self.load,
            Act.UNLOAD: self.unload,
            Act.DELETE: self.delete,
            Act.DISCARD: self.discard,
        }
        await steps[act](model)

    async def download(self, model: Model) -> None:
        """Fetch the wanted tree, and let it replace the present one if it is still wanted."""
        spec = model.wanted
        if spec is None:
            return
        fetch = await self._fetch(model, spec)
        begun = False

        def install(tree: Path) -> Stored | None:
            nonlocal begun
            if not same(model.wanted, spec):
                return None
            begun = True
            stored = self.store.install(spec, tree)
            self.store.discard(spec.name)
            return stored

        try:
            stored = await fetch.run(install)
        except asyncio.CancelledError:
            if begun:
                self.found(model, await in_thread(lambda: self.store.read(spec.name)))
            raise
        finally:
            if begun and model.loaded is Loaded.YES:
                model.loaded = Loaded.STALE
        if stored is not None:
            model.fresh = model.stored is None and not model.available
            self.found(model, stored)
            self._drop(model)

    async def check(self, model: Model) -> None:
        """Ask the server whether it has the model."""
        ready = await self.server.ready(model.name)
        if ready and self._in_doubt.get(model.name) == Doubt(_digest(model), first=True):
            del self._in_doubt[model.name]
            await self._note_loaded(model)
        noted = model.name in self._noted
        model.loaded = (Loaded.YES if noted else Loaded.STALE) if ready else Loaded.NO
        model.checked = True
        model.fresh = False

    async def load(self, model: Model) -> None:
        """Have the server serve the tree on disk."""
        if model.fresh:
            await self.check(model)
        await self._declare()
        if not await self._settled(model):
            await self._note_loading(model, loading=True)
            try:
                await self.server.load(model.name, was_ready=model.available)
            except ServerError as error:
                if error.reason is Reason.SERVER_TIMEOUT:
                    self._in_doubt[model.name] = Doubt(_digest(model), first=not model.available)
                await self._note_loading(model, loading=False)
                raise
        model.loaded = Loaded.YES
        await self._note_loaded(model)

    async def _note_loaded(self, model: Model) -> None:
        # The note lies in the tree it is about, so it need never be taken back: another tree has none.
        with suppress(OSError):
            await in_thread(lambda: self.store.note_loaded(model.name))
        self._noted.add(model.name)

    async def _settled(self, model: Model) -> bool:
        """Whether a load that an earlier call (or an earlier life) began has come to its end: two at once
        in the server help nobody. False once it makes no sense to wait any longer. Raises ServerError while
        the server is too busy to answer; the doubt remains."""
        doubt = self._in_doubt.get(model.name)
        if doubt is None:
            return False
        telling = not model.available and doubt.digest == _digest(model)
        settled = False
        pauses = Pauses(self.settle)
        while not settled and await pauses.more():
            settled = telling and await self.server.ready(model.name)
        self._in_doubt.pop(model.name, None)
        return settled

    async def _note_loading(self, model: Model, *, loading: bool) -> None:
        with suppress(OSError):
            await in_thread(lambda: self.store.note_loading(model.name, loading))

    async def unload(self, model: Model) -> None:
        """Have the server drop the model, while its files are still there."""
        await self._declare()
        await self.server.unload(model.name)
        model.loaded = Loaded.NO

    async def delete(self, model: Model) -> None:
        """Off the disk."""
        await in_thread(lambda: self.store.remove(model.name))
        self.found(model, None)
        self._in_doubt.pop(model.name, None)

    async def discard(self, model: Model) -> None:
        """Delete the rest of an unwanted download. Files that cannot be deleted now go at the next start."""
        with suppress(OSError):
            await in_thread(lambda: self.store.discard(model.name))
        self._drop(model)

    async def _fetch(self, model: Model, spec: ModelSpec) -> Fetch:
        """The fetch of this content that an earlier attempt began, or a new one."""
        fetch = self.fetches.get(model.name)
        if fetch is None or fetch.spec.content != spec.content or fetch.lost:
            renew = model.staged or not self.store.root.exists()
            model.staged = True  # before it is: a cancellation may come in between
            if renew:
                await in_thread(lambda: self.store.renew(spec.name))
            pause = partial(self.pause, spec.name)
            fetch = Fetch(spec, self.store.staging(spec.name), self.storage, pause)
            self.fetches[model.name] = fetch
        return fetch

    async def _declare(self) -> None:
        if self.server.declarative:
            await self.server.declare(self.complete())

    def _drop(self, model: Model) -> None:
        """Forget the staged tree, which is deleted."""
        fetch = self.fetches.pop(model.name, None)
        if fetch is not None:
            self.storage.budget.release(fetch.key)
        model.staged = False


def _digest(model: Model) -> str:
    """The digest of the tree on disk; empty without one."""
    return model.stored.digest if model.stored is not None else ""
