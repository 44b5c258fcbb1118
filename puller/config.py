"""The config directory: read as a whole, and watched.

The watch only saves time: the directory is also read every `poll` seconds.
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
"""Of one key. The API server allows 1 MiB for the whole ConfigMap."""


class ConfigUnreadableError(Exception):
    """The directory is missing, or changes all the time. The message is one sentence."""


def read(directory: Path) -> dict[str, str]:
    """ConfigMap data (key -> text) at one moment. Raises ConfigUnreadableError.

    Text that is not UTF-8 contains surrogates, which `model_config.parse` refuses.
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
    """Yields at once, then after each change of the directory, and at least every `poll` seconds."""
    changed = asyncio.Event()
    watcher = asyncio.create_task(_watch(directory, changed))
    try:
        while True:
            changed.clear()
            yield
            with suppress(TimeoutError):
                async with asyncio.timeout(poll):  # wait_for may lose a cancellation before Python 3.12
                    await changed.wait()
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


async def _watch(directory: Path, changed: asyncio.Event) -> None:
    """Set `changed` on every event. Start again if the directory is removed or the watch fails."""
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
