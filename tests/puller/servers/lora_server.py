"""Servers that answer about LoRA adapters as vLLM and SGLang do, as far as the puller uses them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.puller.fakes import Listening, tree_bytes


@dataclass
class FakeLoraServer(Listening):
    """Answers as vLLM 0.32 does. `broken`: content that does not load. `key`: the API key. `enabled`: the
    switch."""

    prefix = "/v1"
    alive = "/health"

    base: str = "base"
    enabled: bool = True
    key: str = ""
    broken: set[bytes] = field(default_factory=set)
    adapters: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Name -> (path, what was read from it)."""
    calls: Counter[str] = field(default_factory=Counter)
    paths: set[str] = field(default_factory=set)
    """All that it was ever given since it started: it may read any of them again."""

    @property
    def serving(self) -> dict[str, bytes]:
        return {name: weights for name, (_, weights) in self.adapters.items()}

    async def restart(self) -> None:
        await self.stop()
        self.adapters.clear()
        self.paths.clear()
        await self.start()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.calls[f"{request.method} {request.path}"] += 1
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if request.path == "/v1/models":
            roots = {self.base: "/models/base"} | {name: root for name, (root, _) in self.adapters.items()}
            return web.json_response({"data": [{"id": name, "root": root} for name, root in roots.items()]})
        if request.path == self.alive:
            return web.Response()
        if request.method == "POST":
            body = json.loads(await request.read())
            if request.path == f"{self.prefix}/load_lora_adapter":
                assert not body.get("load_inplace"), "vLLM would read it again for every batch"
                return await self._load(body["lora_name"], body["lora_path"])
            if request.path == f"{self.prefix}/unload_lora_adapter":
                return await self._unload(body["lora_name"])
        return web.json_response({"detail": "Not Found"}, status=404)

    async def _load(self, name: str, path: str) -> web.Response:
        if not self.enabled:
            return web.json_response({"detail": "Not Found"}, status=404)
        if name == self.base or name in self.adapters:
            return self._refused(400, f"The lora adapter '{name}' has already been loaded.")
        content = tree_bytes(Path(path)) or b""
        if content in self.broken:
            return self._refused(500, "bad weights")
        self.adapters[name] = path, content
        self.paths.add(path)
        return web.Response(text="Success")

    async def _unload(self, name: str) -> web.Response:
        if self.adapters.pop(name, None) is None:
            return self._refused(404, f"The lora adapter '{name}' cannot be found.")
        return web.Response(text="Success")

    def _refused(self, status: int, text: str) -> web.Response:
        return web.json_response({"error": {"message": text}}, status=status)


@dataclass
class FakeSglangServer(FakeLoraServer):
    """Answers as SGLang 0.5.23 does (entrypoints/http_server.py, managers/tokenizer_control_mixin.py,
    managers/tokenizer_manager.py, lora/lora_registry.py, lora/lora_manager.py).

    `most`: `--max-loaded-loras`. `data_parallel`: `--dp-size`. `partial`: names that one rank of several
    fails to load, the next time. `wanted`: names with requests all the time.
    """

    prefix = ""
    alive = "/model_info"

    most: int | None = None
    data_parallel: int = 1
    partial: set[str] = field(default_factory=set)
    wanted: set[str] = field(default_factory=set)
    refs: dict[str, str] = field(default_factory=dict)
    """The path of each adapter that was ever loaded: a request that names it loads it again."""
    pending: set[str] = field(default_factory=set)
    """Names with an unload that is not complete."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def restart(self) -> None:
        await super().restart()
        self.refs.clear()
        self.pending.clear()

    async def request(self, name: str) -> bytes:
        """The weights that answer a request for an adapter. Raises LookupError, a 400 for the client."""
        if name not in self.adapters:
            if name not in self.refs:
                raise LookupError("Got LoRA adapter that has never been loaded")
            error = await self._loaded(name, self.refs[name])
            if error and "already loaded" not in error:
                raise LookupError(error)
        self.adapters[name] = self.adapters.pop(name)  # the most recently used one is the last
        return self.adapters[name][1]

    async def _load(self, name: str, path: str) -> web.Response:
        return await self._result(self._loaded(name, path))

    async def _unload(self, name: str) -> web.Response:
        return await self._result(self._unloaded(name))

    async def _result(self, work: Coroutine[Any, Any, str]) -> web.Response:
        if self.data_parallel > 1:
            work.close()
            return web.Response(text="Internal Server Error", status=500)
        error = await work
        said = {"success": not error, "error_message": error, "loaded_adapters": dict(self.refs)}
        return web.json_response(said, status=400 if error else 200)

    async def _loaded(self, name: str, path: str) -> str:
        """The error; empty if the adapter was loaded."""
        if not self.enabled:
            return "LoRA is not enabled. Please set `--enable-lora` to enable LoRA."
        async with self.lock:
            if name in self.pending:
                return f"LoRA adapter '{name}' has an incomplete unload. Retry the unload before loading it"
            if name in self.adapters:
                return f"Failed to load LoRA adapter {name} because it is already loaded"
            content = tree_bytes(Path(path))
            if content is None or content in self.broken:
                return "bad weights"
            if name in self.partial:
                self.partial.discard(name)
                self.pending.add(name)
                return "out of memory"
            self.adapters[name] = path, content
            self.refs[name] = path
            while self.most is not None and len(self.adapters) > self.most:
                del self.adapters[next(iter(self.adapters))]
        return ""

    async def _unloaded(self, name: str) -> str:
        """The error; empty if the adapter was unloaded."""
        async with self.lock:
            if name not in self.pending and self.adapters.pop(name, None) is None:
                return f"LoRA with name {name} does not exist."
            self.pending.discard(name)
        if name in self.wanted:  # a request has waited for the lock, and comes before our answer
            with suppress(LookupError):
                await self.request(name)
        return ""
