"""LoRA adapters of vLLM and SGLang: loaded and unloaded at run time, next to the server's own model.

Source: vLLM 0.32 (entrypoints/openai/models/serving.py, lora/worker_manager.py) and SGLang 0.5.6 to 0.5.23
(srt/entrypoints/http_server.py, managers/tokenizer_control_mixin.py, lora/lora_registry.py). Both list the
adapters that they have in GET /v1/models, each with the path it was loaded from as `root`.

Law: each version of an adapter has a separate directory of hard links. A path that vLLM was given stays
readable, longer than the model's directory: vLLM reads an adapter again whenever it dropped it from memory,
also for a request that came before the adapter was unloaded or replaced, and if it cannot, its engine ends.
A path that SGLang was given ends before the adapter is unloaded, since SGLang would load it again for the
next request. vLLM's `load_inplace` is not used: with it vLLM reads the adapter again for every batch.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from puller.log import logger
from puller.reasons import Reason
from puller.servers.base import Health, HttpServer, Pauses, ServerError, Timeouts, json_object
from puller.store import MARKER, WORK, remove_tree

ADAPTER = "adapter_config.json"
"""PEFT writes it for every adapter, and the servers read it."""
VERSIONS = "adapters"
"""Below the puller's own directory: `<name>/<version>`."""
_TRIAL = ".next"
"""What follows an adapter's name while a new version is tried; no name of a model has a dot."""
_MAX_LIST = 64 << 20
"""Bytes of /v1/models. An adapter takes about 500."""
_FRESH = 0.2
"""Seconds for which a list of adapters is used again: a start asks for each adapter by itself."""
_SWEEP = 60.0


class LoraServer(HttpServer):
    """`seen_dir`: the model directory as the server's container sees it. `key`: the server's API key."""

    load_path = "/v1/load_lora_adapter"
    unload_path = "/v1/unload_lora_adapter"
    alive_path = "/health"
    switches = "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
    tries = True
    """Whether a new version is loaded under another name first: a bad one must not replace a good one."""
    kept = 3600.0
    """Seconds for which a version stays after another took its place: a request may wait for it so long."""

    def __init__(self, url: str, timeouts: Timeouts, model_dir: Path, seen_dir: Path, key: str = "") -> None:
        super().__init__(url, timeouts, key)
        self._model_dir = model_dir
        self._versions = model_dir / WORK / VERSIONS
        self._seen = seen_dir / WORK / VERSIONS
        self._listed: dict[str, str] = {}
        self._listed_at = float("-inf")
        self._changes = 0
        self._retired: dict[Path, float] = {}
        self._swept_at = float("-inf")

    async def health(self) -> Health:
        health = await self.probe(self.alive_path)
        now = asyncio.get_running_loop().time()
        if health is Health.DOWN or now - self._swept_at > _SWEEP:
            self._swept_at = now
            await asyncio.to_thread(self._sweep, now, kept=0.0 if health is Health.DOWN else self.kept)
        return health

    async def ready(self, name: str) -> bool:
        """Whether the server has some version of this adapter. One that it had before it was asked to load
        ours, from elsewhere, is none."""
        return self._is_ours(name, await self._root(name))

    async def load(self, name: str, *, was_ready: bool) -> None:
        path = await asyncio.to_thread(self._version_path, name)
        root = await self._root(name)
        if root == path:
            return
        if root and not self._is_ours(name, root):
            raise ServerError(
                Reason.LOAD_FAILED,
                f"the server has a model or adapter named {name} that it did not get from here: list the"
                " adapter under another name.",
            )
        if root:
            await self._try(name, path)
            await self._drop(name, next_path=path)
        await self._add(name, path)
        pauses = Pauses(self.timeouts.load)
        while await self._root(name) != path:
            if not await pauses.more():
                raise ServerError(
                    Reason.NOT_READY, f"loaded, but not listed within {self.timeouts.load:g} s."
                )

    async def _try(self, name: str, path: str) -> None:
        """Raises ServerError for a version that the server does not load; the one before stays."""
        if not self.tries:
            return
        trial = f"{name}{_TRIAL}"
        if await self._root(trial):
            await self._drop(trial)
        await self._add(trial, path)
        await self._drop(trial)

    async def _add(self, name: str, path: str) -> None:
        status, answer = await self._post(
            self.load_path, {"lora_name": name, "lora_path": path}, self.timeouts.load
        )
        if not 200 <= status < 300:
            raise ServerError(Reason.LOAD_FAILED, self._explain(status, answer))

    async def unload(self, name: str) -> None:
        """An adapter that is not the puller's stays."""
        if not await self.ready(name):
            return
        await self._drop(name)

    async def _drop(self, name: str, next_path: str = "") -> None:
        """Unload an adapter; `next_path`: of the version that follows it."""
        status, answer = await self._post(self.unload_path, {"lora_name": name}, self.timeouts.unload)
        pauses = Pauses(self.timeouts.unload)
        while await self._root(name):
            if not 200 <= status < 300:
                raise ServerError(Reason.UNLOAD_FAILED, self._explain(status, answer))
            if not await pauses.more():
                raise ServerError(
                    Reason.UNLOAD_FAILED, f"still listed {self.timeouts.unload:g} s after the unload."
                )

    async def declare(self, names: frozenset[str]) -> None:
        """No call: these servers get one call for each adapter."""

    async def _post(self, path: str, body: dict[str, Any], timeout: float) -> tuple[int, bytes]:  # noqa: ASYNC109
        try:
            return await self.call("POST", path, timeout, orjson.dumps(body))
        finally:
            self._changes += 1
            self._listed_at = float("-inf")

    async def _root(self, name: str) -> str:
        """The path that the server loaded this name from; empty if it does not have the name."""
        clock = asyncio.get_running_loop().time
        if clock() - self._listed_at > _FRESH:
            changes, asked_at = self._changes, clock()
            listed = await self._list()
            if changes != self._changes:  # a call changed the list meanwhile
                return listed.get(name, "")
            self._listed, self._listed_at = listed, asked_at
        return self._listed.get(name, "")

    async def _list(self) -> dict[str, str]:
        status, body = await self.call("GET", "/v1/models", self.timeouts.probe, most=_MAX_LIST)
        if status != 200:
            raise ServerError(Reason.LOAD_FAILED, self._explain(status, body))
        cards = json_object(body).get("data")
        if not isinstance(cards, list):
            raise ServerError(Reason.LOAD_FAILED, "the server's answer to GET /v1/models lists no models.")
        return {str(card.get("id")): str(card.get("root") or "-") for card in cards if isinstance(card, dict)}

    def _is_ours(self, name: str, root: str) -> bool:
        return root.startswith(f"{self._seen / name}/")

    def _version_path(self, name: str) -> str:
        """The path of the version on disk, as the server sees it; made if need be. Raises ServerError."""
        directory = self._model_dir / name
        if not (directory / ADAPTER).is_file():
            raise ServerError(
                Reason.LOAD_FAILED,
                f"there is no {ADAPTER} in it: with vllm and sglang, each listed model is a LoRA adapter.",
            )
        version = self._version(directory)
        path = self._versions / name / version
        if not path.exists():
            scratch = self._model_dir / WORK / "new" / f"{name}.{VERSIONS}"  # swept at the start
            remove_tree(scratch)
            for parent in (scratch.parent, path.parent):
                parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(directory, scratch, symlinks=True, copy_function=_linked)
            scratch.rename(path)
        return str(self._seen / name / version)

    @staticmethod
    def _version(directory: Path) -> str:
        """Another one for each tree that was installed."""
        return f"{max((marker.stat().st_mtime_ns for marker in directory.glob(f'{MARKER}*')), default=0):x}"

    def _sweep(self, now: float, *, kept: float) -> None:
        """Delete versions that are not on disk as models any more, `kept` seconds after that was seen."""
        found = set(self._versions.glob("*/*"))
        current = {path for path in found if self._version(self._model_dir / path.parent.name) == path.name}
        self._retired = {path: self._retired.get(path, now) for path in found - current}
        for path, since in self._retired.items():
            if now - since >= kept:
                try:
                    remove_tree(path)
                    if not any(path.parent.iterdir()):
                        path.parent.rmdir()
                except OSError as error:
                    logger.warning("adapter's old version not removed", path=str(path), error=str(error))

    def _explain(self, status: int, body: bytes) -> str:
        said = json_object(body)
        error = said.get("error")
        text = error.get("message") if isinstance(error, dict) else said.get("error_message") or error
        text = (
            text or said.get("message") or said.get("detail") or body[:300].decode(errors="replace").strip()
        )
        hint = ""
        if status in (401, 403):
            hint = " (give the puller the server's key in CHASSIS_PULLER_SERVER_API_KEY)"
        elif "not enabled" in str(text).lower() or text in ("Not Found", "Method Not Allowed"):
            hint = f" (start the server with {self.switches})"
        return f"the server answers {status}: {str(text)[:300] or 'with an empty body'}{hint}"


def _linked(source: str, target: str) -> None:
    """A hard link; a copy, where the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


class SglangServer(LoraServer):
    """SGLang remembers the path of each adapter, and loads it again for a request that names it, also after
    an unload. So an adapter that it put away for others (`--max-loaded-loras`) counts as loaded: to load it
    would put away another one. An adapter is in memory once it is loaded; its files are not needed any more.

    A trial of a new version could put away adapters that requests need: there is none.
    """

    load_path = "/load_lora_adapter"
    unload_path = "/unload_lora_adapter"
    alive_path = "/model_info"  # /health generates a token, and /get_model_info logs a warning
    switches = "--enable-lora, --max-lora-rank and --lora-target-modules"
    tries = False
    kept = 0.0

    def __init__(self, url: str, timeouts: Timeouts, model_dir: Path, seen_dir: Path, key: str = "") -> None:
        super().__init__(url, timeouts, model_dir, seen_dir, key)
        self._given: dict[str, str] = {}
        """The adapters that this server has loaded from us since its start, and their paths."""

    async def health(self) -> Health:
        health = await super().health()
        if health is Health.DOWN:
            self._given.clear()
        return health

    async def unload(self, name: str) -> None:
        await asyncio.to_thread(self._remove_versions, name, "")  # it may be put away and not be listed
        await super().unload(name)

    async def _add(self, name: str, path: str) -> None:
        try:
            await super()._add(name, path)
        except ServerError as error:
            if error.reason is Reason.LOAD_FAILED:
                with suppress(ServerError):
                    await self._clean_up(name)
            raise
        self._given[name] = path

    async def _clean_up(self, name: str) -> None:
        """After a load that some of the server's processes carried out and others not: only an unload ends
        that, and until then SGLang refuses to load the adapter."""
        if not await self._root(name):
            await self._post(self.unload_path, {"lora_name": name}, self.timeouts.unload)

    async def _drop(self, name: str, next_path: str = "") -> None:
        await asyncio.to_thread(self._remove_versions, name, Path(next_path).name)
        self._given.pop(name, None)
        await super()._drop(name, next_path)

    async def _list(self) -> dict[str, str]:
        listed = await super()._list()
        if not self._given.items() & listed.items():  # the latest one is always listed: it was restarted
            self._given.clear()
        self._given |= {name: root for name, root in listed.items() if self._is_ours(name, root)}
        return self._given | listed

    def _remove_versions(self, name: str, but: str) -> None:
        for path in (self._versions / name).glob("*"):
            if path.name != but:
                remove_tree(path)

    def _explain(self, status: int, body: bytes) -> str:
        hint = " (SGLang takes adapters only with --dp-size 1)" if status == 500 else ""
        return super()._explain(status, body) + hint
