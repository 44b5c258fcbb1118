"""Shared by all storage back ends: their error, progress, limits, the check of paths, work in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

from puller.reasons import StatusReason, StepError

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class StorageError(StepError):
    """A fetch that failed. Every failure is retried in a later attempt, a `transient` one also within the
    attempt."""

    def __init__(self, reason: StatusReason, message: str, *, transient: bool = False) -> None:
        super().__init__(reason, message)
        self.transient = transient


@dataclass(slots=True)
class FetchProgress:
    """The progress of a fetch in bytes, for the status. `message`: why it waits or retries. `slow`: the store
    once sent less than a chunk within the stall timeout."""

    done: int = 0
    total: int = 0
    message: str = ""
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one fetch. Sizes in bytes, times in seconds."""

    connections: int = 8
    """Requests in flight at a time, over all models."""
    part_size: int = 32 << 20
    """Longer objects are fetched in ranges of this size, several at a time."""
    chunk_size: int = 1 << 20
    """Bytes in memory for each connection."""
    connect_timeout: float = 10.0
    stall_timeout: float = 30.0
    """Time without a byte after which a request fails."""
    head_timeout: float = 60.0
    """Time after which a request fails if the head of the response is not complete."""
    retry_timeout: float = 60.0
    """Time without a byte after which an attempt fails, in spite of retries."""
    allow_link_local: bool = False
    """Whether a model may come from a link-local address, or from a cloud's metadata server."""
    plain_registries: frozenset[str] = frozenset()
    """Registries, as host or host:port, that are called over http."""
    retry_initial: float = 0.2
    retry_max: float = 5.0
    max_entries: int = 200_000
    """Entries of an archive, or objects under a prefix."""
    max_expansion: int = 200
    """Unpacked bytes per byte of archive, for archives of more than `free_expansion` unpacked bytes."""
    free_expansion: int = 1 << 30


MAX_DEPTH = 100
"""Levels of directories in a model."""
_MAX_PATH = 2048
"""Bytes of a path in a model. The kernel allows 4096, including the model directory."""


def safe_path(path: str) -> str:
    """The path, if it is a relative one that stays in the model's directory and that file systems allow.
    Raises StorageError."""
    if len(path.encode(errors="surrogatepass")) > _MAX_PATH or path.count("/") > MAX_DEPTH:
        raise StorageError(
            StatusReason.HOSTILE_PATH,
            f"the path {path[:80]!r}… has over {_MAX_PATH} bytes, or is over {MAX_DEPTH} directories deep.",
        )
    parts = path.split("/")
    too_long = any(len(part.encode(errors="surrogatepass")) > 255 for part in parts)
    if too_long or not {"", ".", ".."}.isdisjoint(parts) or not path.isprintable():
        raise StorageError(
            StatusReason.HOSTILE_PATH, f"the path {path!r} is not allowed in a model's directory."
        )
    return path


async def in_thread(
    work: Callable[[*Arguments], T],
    *arguments: *Arguments,
    cancel: Callable[[], None] = lambda: None,
) -> T:
    """Run blocking work in a thread. If cancelled, call `cancel` and wait for the thread to end: no write may
    come after its descriptor was closed or its directory deleted."""
    future = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        cancel()
        while not future.done():
            try:
                await asyncio.wait({future})
            except asyncio.CancelledError:
                continue
        if not future.cancelled():
            future.exception()
        raise
