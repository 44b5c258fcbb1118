"""vLLM's and SGLang's lists of adapters, as far as the puller uses them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from tests.puller.fakes import Listening, tree_bytes


@dataclass
class FakeLoraServer(Listening):
    """Answers as vLLM 0.32 does; with `sglang`, as SGLang does. `broken`: content that does not load. `key`:
    the API key. `enabled`: the switch."""

    base: str = "base"
    sglang: bool = False
    enabled: bool = True
    key: str = ""
    broken: set[bytes] = field(default_factory=set)
    adapters: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Name -> (path, what was read from it)."""
    calls: Counter[str] = field(default_factory=Counter)
    paths: set[str] = field(default_factory=set)
    """All that it was ever given since it started: it may read any of them again."""

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def serving(self) -> dict[str, bytes]:
        return {name: weights for name, (_, weights) in self.adapters.items()}

    async def restart(self) -> None:
        await self.stop()
        self.adapters.clear()
        self.paths.clear()
        await self.start()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path.removeprefix("/v1") if not self.sglang else request.path
        self.calls[f"{request.method} {request.path}"] += 1
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if request.path == "/v1/models":
            roots = {self.base: "/models/base"} | {name: root for name, (root, _) in self.adapters.items()}
            return web.json_response({"data": [{"id": name, "root": root} for name, root in roots.items()]})
        if request.path in ("/health", "/get_model_info"):
            return web.Response()
        if request.method != "POST" or not self.enabled:
            return web.json_response({"detail": "Not Found"}, status=404)
        body = json.loads(await request.read())
        if path == "/load_lora_adapter":
            assert not body.get("load_inplace"), "vLLM would read it again for every batch"
            return self._load(body["lora_name"], body["lora_path"])
        if path == "/unload_lora_adapter":
            return self._unload(body["lora_name"])
        return web.json_response({"detail": "Not Found"}, status=404)

    def _load(self, name: str, path: str) -> web.Response:
        if name == self.base or name in self.adapters:
            return self._refused(400, f"The lora adapter '{name}' has already been loaded.")
        content = tree_bytes(Path(path)) or b""
        if content in self.broken:
            return self._refused(400 if self.sglang else 500, "bad weights")
        self.adapters[name] = path, content
        self.paths.add(path)
        return web.Response(text="Success")

    def _unload(self, name: str) -> web.Response:
        if self.adapters.pop(name, None) is None:
            return self._refused(400 if self.sglang else 404, f"The lora adapter '{name}' cannot be found.")
        return web.Response(text="Success")

    def _refused(self, status: int, text: str) -> web.Response:
        said = {"success": False, "error_message": text} if self.sglang else {"error": {"message": text}}
        return web.json_response(said, status=status)
