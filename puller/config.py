"""The config directory: read whole, as kubelet means it to be read, and watched.

Kubelet writes a ConfigMap into a fresh directory and swaps the link `..data` to it. All values read here
come from one such directory. The watch only saves time: the directory is read every `poll` seconds anyway.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

from watchfiles import awatch

from puller.mounted import UnstableError, read_mounted

MAX_BYTES = 2 << 20
"""Of one key. The API server stops at 1 MiB for the whole ConfigMap."""


class ConfigUnreadableError(Exception):
    """The directory is missing, or does not hold still. The message is one sentence."""


def read(directory: Path) -> dict[str, str]:
    """ConfigMap data (key -> text) as of one moment. Raises ConfigUnreadableError.

    Text that is not UTF-8 comes with surrogates in it, which no value of a config may hold.
    """
    try:
        files = read_mounted(directory, lambda name: name.endswith(".json") and name[:2] != "..", MAX_BYTES)
    except UnstableError as error:
        raise ConfigUnreadableError(f"{error}.") from None
    except FileNotFoundError:
        raise ConfigUnreadableError(f"there is no directory {directory}.") from None
    except OSError as error:
        raise ConfigUnreadableError(f"{directory} cannot be read: {error.strerror}.") from None
    # The name is shown in the status.
    return {
        os.fsencode(name).decode(errors="replace"): content.decode(errors="surrogateescape")
        if len(content) <= MAX_BYTES
        else ""
        for name, content in files.items()
    }


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
                    directory, stop_event=stop, debounce=100, step=50, watch_filter=None, recursive=False
                ):
                    changed.set()
            await asyncio.sleep(1)
    finally:
        stop.set()
