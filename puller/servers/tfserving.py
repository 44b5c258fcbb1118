"""TensorFlow Serving: declarative. It reads the whole set of models from one file.

Start it with `--model_config_file=<model-dir>/models.config --model_config_file_poll_wait_seconds=1`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote

from puller.files import read_regular, write_atomically
from puller.reasons import StatusReason
from puller.servers.base import HttpServer, ServerError, ServerHealth, Timeouts, json_object, poll

CONFIG_NAME = "models.config"


class TfServing(HttpServer):
    """`server_dir`: the path of the model directory in the server's container."""

    declarative = True

    def __init__(self, url: str, timeouts: Timeouts, model_dir: Path, server_dir: Path) -> None:
        super().__init__(url, timeouts)
        self._model_dir = model_dir
        self._server_dir = server_dir
        self._declared: frozenset[str] = frozenset()
        self._unlisted: set[str] = set()
        self._written: bytes | None = None
        self._writing = asyncio.Lock()

    async def health(self) -> ServerHealth:
        return await self.probe("/v1/models/-")

    async def ready(self, name: str) -> bool:
        return bool(await self._available(name))

    async def load(self, name: str, *, was_ready: bool) -> None:
        versions = await asyncio.to_thread(self._versions, name)
        if not versions:
            raise ServerError(
                StatusReason.NO_VERSION, "TensorFlow Serving needs a numbered directory in the model."
            )
        if was_ready and versions & await self._available(name):
            # The server never reads a served version number again: remove the model first.
            self._unlisted.add(name)
            try:
                await self._write()
                await self._until(name, frozenset(), self.timeouts.unload)
            finally:
                self._unlisted.discard(name)
        await self._write()
        await self._until(name, frozenset({max(versions)}), self.timeouts.load)

    async def unload(self, name: str) -> None:
        self._declared -= {name}
        await self._write()
        await self._until(name, frozenset(), self.timeouts.unload)

    async def declare(self, names: frozenset[str]) -> None:
        self._declared = names
        await self._write()

    async def _write(self) -> None:
        async with self._writing:
            text = render(sorted(self._declared - self._unlisted), self._server_dir).encode()
            if text == self._written:
                return
            path = self._model_dir / CONFIG_NAME
            try:
                await asyncio.to_thread(write_atomically, path, text)
            except OSError as error:
                if await asyncio.to_thread(_contains, path, text):  # on a read-only volume
                    self._written = text
                    return
                raise ServerError(
                    StatusReason.CONFIG_UNWRITABLE, f"{CONFIG_NAME} cannot be written: {error.strerror}."
                ) from None
            self._written = text

    async def _until(self, name: str, wanted: frozenset[int], limit: float) -> None:
        """Wait until all `wanted` versions are available, or without any, until no version is."""

        async def reached() -> bool:
            available = await self._available(name)
            return wanted <= available if wanted else not available

        if not await poll(reached, limit):
            verb = "loaded" if wanted else "unloaded"
            raise ServerError(
                StatusReason.NOT_READY,
                f"not {verb} within {limit:g} s; does the server poll its config file?",
            )

    async def _available(self, name: str) -> frozenset[int]:
        status, body = await self.call("GET", f"/v1/models/{quote(name)}", self.timeouts.probe)
        if status != 200:
            return frozenset()
        try:
            states = json_object(body)["model_version_status"]
            return frozenset(int(state["version"]) for state in states if state["state"] == "AVAILABLE")
        except (ValueError, KeyError, TypeError):
            return frozenset()

    def _versions(self, name: str) -> frozenset[int]:
        directory = self._model_dir / name
        return frozenset(
            int(entry.name) for entry in directory.iterdir() if entry.name.isdecimal() and entry.is_dir()
        )


def _contains(path: Path, text: bytes) -> bool:
    try:
        return read_regular(path, len(text) + 1)[0] == text
    except OSError:
        return False


def render(names: list[str], server_dir: Path) -> str:
    """The ModelServerConfig text protobuf of exactly these models."""
    configs = "".join(
        f'  config {{\n    name: "{name}"\n    base_path: {_quoted(str(server_dir / name))}\n'
        '    model_platform: "tensorflow"\n  }\n'
        for name in names
    )
    return f"model_config_list {{\n{configs}}}\n"


def _quoted(text: str) -> str:
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}" for byte in text.encode()
    )
    return f'"{escaped}"'
