"""A pod without Kubernetes: a ConfigMap volume, a model directory, a store, a model server, the puller."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from puller.cli import server_of, storage_of
from puller.options import PullerOptions
from puller.plan import ModelState, state
from puller.reconcile import Reconciler
from puller.servers.base import HttpServer, Timeouts
from puller.storage.base import Limits
from tests.puller.fakes import BUCKET, ConfigVolume, FakeServer, FaultStore, tree_bytes, until


@dataclass
class World:
    """Everything around one puller. `start` and `stop` may be called again and again."""

    store: FaultStore
    server: FakeServer
    config: ConfigVolume
    options: PullerOptions
    puller: Reconciler | None = None
    _task: asyncio.Task[None] | None = None

    @property
    def model_dir(self) -> Path:
        return self.options.model_dir

    def put(self, name: str, content: bytes | str, file: str = "model.bin") -> str:
        """An object below the prefix `name`; the URI of that prefix."""
        self.store.objects[f"{name}/{file}"] = content.encode() if isinstance(content, str) else content
        return f"s3://{BUCKET}/{name}"

    async def serve(self, **models: bytes | str) -> None:
        """List exactly these models, and wait until they are served."""
        self.config.write({name: self.put(name, content) for name, content in models.items()})
        if self.puller is None:
            self.start()
        await self.serves(models)

    async def reports(self, name: str, reason: str) -> dict[str, Any]:
        """Wait until the model's entry has this reason."""
        await until(lambda: self.entry(name).get("reason") == reason, what=f"{name}: {reason}")
        return self.entry(name)

    def set(self, **changes: Any) -> None:
        self.options = dataclasses.replace(self.options, **changes)

    def start(self) -> Reconciler:
        options = self.options
        self.puller = Reconciler(options, server_of(options), storage_of(options, self.store.env))
        self._task = asyncio.create_task(self.puller.run())
        return self.puller

    def hurry(self, **seconds: float) -> None:
        """Set the timeouts of the running puller for its server."""
        assert self.puller is not None
        server = self.puller.actions.server
        assert isinstance(server, HttpServer)
        server.timeouts = dataclasses.replace(server.timeouts, **seconds)

    async def stop(self) -> None:
        if self.puller is not None and self._task is not None:
            self.puller.stop()
            await asyncio.wait_for(self._task, 60)
            await self.puller.actions.server.close()
        self.puller = self._task = None

    async def kill(self) -> None:
        """End as a crash would, as far as possible in one process, without cleaning up."""
        assert self.puller is not None
        assert self._task is not None

        async def nothing() -> None:
            """Replaces the shutdown."""

        self.puller._shut_down = nothing  # type: ignore[method-assign]
        tasks = {self._task, *self.puller._tasks.values()}
        while running := {task for task in tasks if not task.done()}:
            for task in running:  # before Python 3.12 asyncio.wait_for may swallow a cancellation
                task.cancel()
            await asyncio.wait(running, timeout=10)
        await self.puller.actions.storage.close()
        self.puller._store.close()
        await self.puller.actions.server.close()
        self.puller = self._task = None

    def on_disk(self, name: str) -> bytes | None:
        """The content of a model that is complete (marked), else None."""
        directory = self.model_dir / name
        with suppress(FileNotFoundError):  # the puller removes it at this very moment
            return tree_bytes(directory) if any(directory.glob("SUCCESS.*")) else None
        return None

    def states(self) -> dict[str, ModelState]:
        assert self.puller is not None
        return {name: state(model) for name, model in self.puller.models.items()}

    def entry(self, name: str) -> dict[str, Any]:
        """The model's entry in /v1/models."""
        assert self.puller is not None
        document = self.puller.status.document(self.puller.models, self.puller.actions.fetches)
        return next((entry for entry in document["models"] if entry["name"] == name), {})

    def desired(self, name: str) -> str:
        """The URI that the puller read from the config for this model; empty if there is none."""
        model = self.puller.models.get(name) if self.puller is not None else None
        return model.desired.storage_uri if model is not None and model.desired is not None else ""

    def ready(self) -> bool:
        assert self.puller is not None
        return self.puller.status.ready(self.puller.models)[0]

    async def serves(self, expected: dict[str, bytes | str]) -> None:
        """Wait until the server serves exactly these models, and exactly they are on disk."""
        wanted = {name: text.encode() if isinstance(text, str) else text for name, text in expected.items()}

        def settled() -> bool:
            return (
                self.puller is not None
                and self.server.serving == wanted
                and {name: self.on_disk(name) for name in self.directories()} == wanted
                and set(self.puller.models) == set(wanted)
                and all(found is ModelState.LOADED for found in self.states().values())
            )

        try:
            await until(settled)
        except AssertionError:
            raise AssertionError(
                f"wanted {wanted}; serving {self.server.serving}; {self.directories()}; {self.states()}"
            ) from None

    def directories(self) -> list[str]:
        return sorted(path.name for path in self.model_dir.iterdir() if not path.name.startswith("."))

    def leftovers(self) -> list[str]:
        """Unfinished trees on disk."""
        work = self.model_dir / ".puller"
        return sorted(
            str(path.relative_to(work))
            for part in ("new/*", "archives/*", "old/*")
            for path in work.glob(part)
        )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    model_dir = tmp_path / "models"
    store = FaultStore()
    server = FakeServer(model_dir=model_dir)
    await store.start()
    await server.start()
    options = PullerOptions(
        config_dir=tmp_path / "configs",
        model_dir=model_dir,
        pvc_dir=tmp_path / "claims",
        server_url=server.url,
        resync=2.0,
        config_poll=1.0,
        server_poll=0.1,
        backoff_initial=0.05,
        backoff_max=0.4,
        grace=60.0,
        timeouts=Timeouts(probe=60.0, load=60.0, unload=60.0),
        limits=Limits(
            part_size=1 << 20,
            chunk_size=1 << 16,
            retry_initial=0.02,
            retry_max=0.1,
        ),
    )
    found = World(store, server, ConfigVolume(options.config_dir), options)
    try:
        yield found
    finally:
        for event in (store.gate, server.hung, server.hang_loads, server.hang_unloads, server.hang_ready):
            if event is not None:
                event.set()
        await found.stop()
        await server.stop()
        await store.stop()
        shutil.rmtree(model_dir, ignore_errors=True)
