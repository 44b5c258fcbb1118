"""The config directory: read whole, as kubelet means it to be read, and watched.

Kubelet writes a ConfigMap into a fresh directory and swaps the link `..data` to it; what is read here is
what one such directory held. Watching only makes it fast: the directory is read again every `poll`
seconds whatever the watch says.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

from watchfiles import awatch

DATA = "..data"
MAX_BYTES = 2 << 20
"""Of one key. The API server stops at 1 MiB for the whole ConfigMap."""

_TRIES = 10


class ConfigUnreadableError(Exception):
    """The directory is missing, or does not hold still. The message is one sentence."""


def read(directory: Path) -> dict[str, str]:
    """ConfigMap data (key -> text) as of one moment. Raises ConfigUnreadableError.

    Text that is not UTF-8 comes with surrogates in it, which no value of a config may hold.
    """
    for _ in range(_TRIES):
        try:
            before = _version(directory)
            files = _read_files(directory / DATA if (directory / DATA).exists() else directory)
            if before == _version(directory):
                return files
        except FileNotFoundError:
            if not directory.is_dir():
                raise ConfigUnreadableError(f"there is no directory {directory}.") from None
        except OSError as error:
            raise ConfigUnreadableError(f"{directory} cannot be read: {error.strerror}.") from None
    raise ConfigUnreadableError(f"{directory} changes faster than it can be read.")


async def changes(directory: Path, poll: float) -> AsyncGenerator[None]:
    """Yields at once, then whenever the directory may have changed, and every `poll` seconds at least."""
    changed = asyncio.Event()
    watcher = asyncio.create_task(_watch(directory, changed))
    try:
        while True:
            changed.clear()
            yield
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), poll)
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


async def _watch(directory: Path, changed: asyncio.Event) -> None:
    """Sets `changed` on every event; starts over when the directory goes away, or the watch breaks."""
    stop = asyncio.Event()
    try:
        while True:
            with suppress(OSError, RuntimeError):
                async for _ in awatch(
                    directory, stop_event=stop, debounce=100, step=20, watch_filter=None, recursive=False
                ):
                    changed.set()
            await asyncio.sleep(1)
    finally:
        stop.set()


def _version(directory: Path) -> object:
    """Something that differs when the content may."""
    if (directory / DATA).is_symlink():
        return (directory / DATA).readlink()
    with os.scandir(directory) as entries:
        return sorted((entry.name, entry.stat().st_mtime_ns, entry.stat().st_size) for entry in entries)


def _read_files(directory: Path) -> dict[str, str]:
    files: dict[str, str] = {}
    for path in directory.iterdir():
        if path.name.endswith(".json") and not path.name.startswith(".."):
            found = path.stat()
            if stat.S_ISREG(found.st_mode):
                text = path.read_bytes() if found.st_size <= MAX_BYTES else b""
                name = os.fsencode(path.name).decode(errors="replace")  # it is told in the status
                files[name] = text.decode(errors="surrogateescape")
    return files
