"""LoRA adapters of vLLM and SGLang: loaded and unloaded at run time, next to the server's own model.

Source: vLLM 0.32 (entrypoints/openai/models/serving.py, lora/worker_manager.py) and SGLang 0.5.6 to 0.5.23
(srt/entrypoints/http_server.py, managers/tokenizer_control_mixin.py, lora/lora_registry.py). Both list the
loaded adapters in GET /v1/models, each with its path as `root`.

Law: each version of an adapter has a separate directory of hard links. A path that vLLM loaded stays readable
longer than the model's directory: vLLM reads an adapter again after it dropped it from memory, also for
a request that came before the adapter was unloaded or replaced, and if it cannot, its engine ends. A path
that SGLang loaded is deleted before the adapter is unloaded, since SGLang would load it again for the next
request. vLLM's `load_inplace` is not used: with it, vLLM reads the adapter again for every batch.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from puller.files import remove_tree
from puller.log import logger
from puller.reasons import StatusReason
from puller.servers.base import HttpServer, ServerError, ServerHealth, Timeouts, json_object, poll
from puller.store import MARKER, VERSIONS_NEW, WORK

ADAPTER = "adapter_config.json"
"""PEFT writes it for every adapter, and the servers read it."""
VERSIONS = "adapters"
"""Below the puller's own directory: `<name>/<version>`."""
_TRIAL = ".next"
"""The suffix of an adapter's name while a new version is tried; names of models have no dots."""
_MAX_LIST = 64 << 20
"""Bytes of /v1/models. An adapter takes about 500."""
_LIST_TTL = 0.2
"""Seconds for which a list of adapters is reused: at the start, each adapter is checked by a call."""
_SWEEP_INTERVAL = 60.0


class LoraServer(HttpServer):
    """`server_dir`: the path of the model directory in the server's container. `key`: the API key."""

    load_path = "/v1/load_lora_adapter"
    unload_path = "/v1/unload_lora_adapter"
    alive_path = "/health"
    switches = "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
    has_trials = True
    """Whether a new version is loaded under another name first: a bad one must not replace a good one."""
    retention = 3600.0
    """Seconds for which a replaced version stays on disk: requests may still wait for it."""

    def __init__(
        self, url: str, timeouts: Timeouts, model_dir: Path, server_dir: Path, key: str = ""
    ) -> None:
        super().__init__(url, timeouts, key)
        self._model_dir = model_dir
        self._versions = model_dir / WORK / VERSIONS
        self._server_versions = server_dir / WORK / VERSIONS
        self._listed: dict[str, str] = {}
        self._listed_at = float("-inf")
        self._changes = 0
        self._retired: dict[Path, float] = {}
        self._swept_at = float("-inf")

    async def health(self) -> ServerHealth:
        health = await self.probe(self.alive_path)
        now = asyncio.get_running_loop().time()
        if health is ServerHealth.DOWN or now - self._swept_at > _SWEEP_INTERVAL:
            self._swept_at = now
            await asyncio.to_thread(self._sweep, now, 0.0 if health is ServerHealth.DOWN else self.retention)
        return health

    async def ready(self, name: str) -> bool:
        """Whether the server has a version of this adapter that the puller loaded."""
        return self._is_ours(name, await self._loaded_path(name))

    async def load(self, name: str, *, was_ready: bool) -> None:
        path = await asyncio.to_thread(self._version_path, name)
        loaded = await self._loaded_path(name)
        if loaded == path:
            return
        if loaded and not self._is_ours(name, loaded):
            raise ServerError(
                StatusReason.LOAD_FAILED,
                f"the server has a model or adapter named {name} that the puller did not load: list the"
                " adapter under another name.",
            )
        if loaded:
            await self._try_version(name, path)
            await self._unload_adapter(name, next_path=path)
        await self._load_adapter(name, path)

        async def listed() -> bool:
            return await self._loaded_path(name) == path

        if not await poll(listed, self.timeouts.load):
            raise ServerError(
                StatusReason.NOT_READY, f"loaded, but not listed within {self.timeouts.load:g} s."
            )

    async def _try_version(self, name: str, path: str) -> None:
        """Raises ServerError for a version that the server cannot load; the previous one stays."""
        if not self.has_trials:
            return
        trial = f"{name}{_TRIAL}"
        if await self._loaded_path(trial):
            await self._unload_adapter(trial)
        await self._load_adapter(trial, path)
        await self._unload_adapter(trial)

    async def _load_adapter(self, name: str, path: str) -> None:
        status, answer = await self._post(
            self.load_path, {"lora_name": name, "lora_path": path}, self.timeouts.load
        )
        if not 200 <= status < 300:
            raise ServerError(StatusReason.LOAD_FAILED, self._explain(status, answer))

    async def unload(self, name: str) -> None:
        """Adapters that the puller did not load stay."""
        if await self.ready(name):
            await self._unload_adapter(name)

    async def _unload_adapter(self, name: str, next_path: str = "") -> None:
        """Unload an adapter. `next_path`: the version that is loaded next."""
        status, answer = await self._post(self.unload_path, {"lora_name": name}, self.timeouts.unload)

        async def unloaded() -> bool:
            return not await self._loaded_path(name)

        if not 200 <= status < 300 and not await unloaded():
            raise ServerError(StatusReason.UNLOAD_FAILED, self._explain(status, answer))
        if not await poll(unloaded, self.timeouts.unload):
            raise ServerError(
                StatusReason.UNLOAD_FAILED, f"still listed {self.timeouts.unload:g} s after the unload."
            )

    async def _post(self, path: str, body: dict[str, Any], timeout: float) -> tuple[int, bytes]:  # noqa: ASYNC109
        try:
            return await self.call("POST", path, timeout, orjson.dumps(body))
        finally:
            self._changes += 1
            self._listed_at = float("-inf")

    async def _loaded_path(self, name: str) -> str:
        """The path that the server loaded this adapter from; empty if it has no such adapter."""
        clock = asyncio.get_running_loop().time
        if clock() - self._listed_at > _LIST_TTL:
            changes, asked_at = self._changes, clock()
            listed = await self._list()
            if changes != self._changes:  # a call changed the list meanwhile
                return listed.get(name, "")
            self._listed, self._listed_at = listed, asked_at
        return self._listed.get(name, "")

    async def _list(self) -> dict[str, str]:
        status, body = await self.call("GET", "/v1/models", self.timeouts.probe, limit=_MAX_LIST)
        if status != 200:
            raise ServerError(StatusReason.LOAD_FAILED, self._explain(status, body))
        cards = json_object(body).get("data")
        if not isinstance(cards, list):
            raise ServerError(
                StatusReason.LOAD_FAILED, "the server's response to GET /v1/models lists no models."
            )
        return {str(card.get("id")): str(card.get("root") or "-") for card in cards if isinstance(card, dict)}

    def _is_ours(self, name: str, root: str) -> bool:
        return root.startswith(f"{self._server_versions / name}/")

    def _version_path(self, name: str) -> str:
        """The path, in the server's container, of the version on disk; created if missing. Raises
        ServerError."""
        directory = self._model_dir / name
        if not (directory / ADAPTER).is_file():
            raise ServerError(
                StatusReason.LOAD_FAILED,
                f"it has no {ADAPTER}: with vllm and sglang, each listed model is a LoRA adapter.",
            )
        version = self._version(directory)
        path = self._versions / name / version
        if not path.exists():
            scratch = self._model_dir / WORK / VERSIONS_NEW / name  # swept at the start
            remove_tree(scratch)
            for parent in (scratch.parent, path.parent):
                parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(directory, scratch, symlinks=True, copy_function=_link_or_copy)
            scratch.rename(path)
        return str(self._server_versions / name / version)

    @staticmethod
    def _version(directory: Path) -> str:
        """The name of a version: different for each installed tree."""
        return f"{max((marker.stat().st_mtime_ns for marker in directory.glob(f'{MARKER}*')), default=0):x}"

    def _sweep(self, now: float, retention: float) -> None:
        """Delete old versions `retention` seconds after they were first seen to be old."""
        found = set() if self._versions.is_symlink() else set(self._versions.glob("*/*"))
        found = {path for path in found if not path.parent.is_symlink()}  # a link leads to files of others
        current = {path for path in found if self._version(self._model_dir / path.parent.name) == path.name}
        self._retired = {path: self._retired.get(path, now) for path in found - current}
        for path, since in self._retired.items():
            if now - since >= retention:
                try:
                    remove_tree(path)
                    if not any(path.parent.iterdir()):
                        path.parent.rmdir()
                except OSError as error:
                    logger.warning("adapter's old version not removed", path=str(path), error=str(error))

    def _explain(self, status: int, body: bytes) -> str:
        answer = json_object(body)
        error = answer.get("error")
        text = error.get("message") if isinstance(error, dict) else answer.get("error_message") or error
        text = text or answer.get("message") or answer.get("detail")
        text = text or body[:300].decode(errors="replace").strip()
        hint = ""
        if status in (401, 403):
            hint = " (give the puller the server's key in CHASSIS_PULLER_SERVER_API_KEY)"
        elif "not enabled" in str(text).lower() or text in ("Not Found", "Method Not Allowed"):
            hint = f" (start the server with {self.switches})"
        return f"the server answers {status}: {str(text)[:300] or 'with an empty body'}{hint}"


def _link_or_copy(source: str, target: str) -> None:
    """Create a hard link, or a copy if the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


class SglangServer(LoraServer):
    """SGLang keeps the path of each adapter, and loads it again for a request that names it, also after an
    unload. So an adapter that it evicted for others (`--max-loaded-loras`) counts as loaded: another load
    would evict another adapter. Once an adapter is loaded, its files are not needed.

    New versions are not tried under another name: a trial could evict adapters that requests need.
    """

    load_path = "/load_lora_adapter"
    unload_path = "/unload_lora_adapter"
    alive_path = "/model_info"  # /health generates a token, and /get_model_info logs a warning
    switches = "--enable-lora, --max-lora-rank and --lora-target-modules"
    has_trials = False
    retention = 0.0

    def __init__(
        self, url: str, timeouts: Timeouts, model_dir: Path, server_dir: Path, key: str = ""
    ) -> None:
        super().__init__(url, timeouts, model_dir, server_dir, key)
        self._loaded: dict[str, str] = {}
        """The adapters that the puller loaded since the server's start, and their paths."""

    async def health(self) -> ServerHealth:
        health = await super().health()
        if health is ServerHealth.DOWN:
            self._loaded.clear()
        return health

    async def unload(self, name: str) -> None:
        await asyncio.to_thread(self._remove_versions, name, "")  # it may be evicted and not listed
        await super().unload(name)

    async def _load_adapter(self, name: str, path: str) -> None:
        try:
            await super()._load_adapter(name, path)
        except ServerError as error:
            if error.reason is StatusReason.LOAD_FAILED:
                with suppress(ServerError):
                    await self._clean_up(name)
            raise
        self._loaded[name] = path

    async def _clean_up(self, name: str) -> None:
        """If only some of the server's processes loaded the adapter, SGLang refuses to load it again until it
        is unloaded."""
        if not await self._loaded_path(name):
            await self._post(self.unload_path, {"lora_name": name}, self.timeouts.unload)

    async def _unload_adapter(self, name: str, next_path: str = "") -> None:
        await asyncio.to_thread(self._remove_versions, name, Path(next_path).name)
        self._loaded.pop(name, None)
        await super()._unload_adapter(name, next_path)

    async def _list(self) -> dict[str, str]:
        listed = await super()._list()
        if not self._loaded.items() & listed.items():  # the latest is always listed, so it restarted
            self._loaded.clear()
        self._loaded |= {name: root for name, root in listed.items() if self._is_ours(name, root)}
        return self._loaded | listed

    def _remove_versions(self, name: str, keep: str) -> None:
        for path in (self._versions / name).glob("*"):
            if path.name != keep:
                remove_tree(path)

    def _explain(self, status: int, body: bytes) -> str:
        hint = " (SGLang takes adapters only with --dp-size 1)" if status == 500 else ""
        return super()._explain(status, body) + hint
