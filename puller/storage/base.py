"""What all storage back ends share: their one error, progress, and the rule for safe paths."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from puller.quantities import human
from puller.reasons import Reason

T = TypeVar("T")


class StorageError(Exception):
    """A fetch that failed. The message is one sentence for a person. Every failure is tried again
    later; `passing` ones within the attempt too."""

    def __init__(self, reason: Reason, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.passing = passing


@dataclass(slots=True)
class Progress:
    """How far a fetch is, in bytes, and what it is struggling with. Read by the status, never waited on.
    `slow`: the store once gave less than a chunk within the stall timeout."""

    done: int = 0
    total: int = 0
    trouble: str = ""
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one fetch. Sizes in bytes, times in seconds."""

    connections: int = 8
    """Requests in flight at a time, over all models."""
    part_size: int = 32 << 20
    """A longer object is fetched in ranges of this size, several at a time."""
    chunk_size: int = 1 << 20
    """Bytes in memory for each connection."""
    connect_timeout: float = 10.0
    stall_timeout: float = 30.0
    """How long a request may give no byte at all."""
    head_timeout: float = 60.0
    """How long the head of an answer may take, however often a byte of it comes."""
    trouble_timeout: float = 60.0
    """How long an attempt goes on without a byte of progress before it counts as failed."""
    allow_link_local: bool = False
    """Whether a model may come from a link-local address, or one at which a cloud keeps its metadata."""
    plain_registries: frozenset[str] = frozenset()
    """Registries, as host or host:port, that are asked over http."""
    retry_initial: float = 0.2
    retry_max: float = 5.0
    max_entries: int = 200_000
    """Entries of an archive, or objects under a prefix."""
    max_expansion: int = 200
    """Unpacked bytes per byte of archive, once an archive has given more than `free_expansion`."""
    free_expansion: int = 1 << 30


@dataclass
class DiskBudget:
    """What models may occupy: `limit` bytes in all (0: no limit), and never more than is free.

    Shared by the event loop and the threads that unpack.
    """

    root: Path
    limit: int = 0
    _held: dict[str, int] = field(default_factory=dict)
    _total: int = 0
    _written: dict[str, Callable[[], int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hold(self, key: str, size: int) -> None:
        """Record that `key` occupies `size` bytes already on disk."""
        with self._lock:
            self._set(key, size)
            self._written.pop(key, None)

    def release(self, key: str) -> None:
        with self._lock:
            self._total -= self._held.pop(key, 0)
            self._written.pop(key, None)

    def reserve(self, key: str, size: int, written: Callable[[], int]) -> None:
        """Claim `size` bytes for `key`, of which `written()` are on disk by then; raises StorageError where
        they would not fit, and claims nothing."""
        with self._lock:
            others = self._total - self._held.get(key, 0)
            if self.limit and others + size > self.limit:
                raise StorageError(
                    Reason.OVER_MAX_DISK,
                    f"{human(size)} do not fit: models hold {human(others)} of {human(self.limit)} allowed.",
                )
            try:
                free = shutil.disk_usage(self.root).free
            except OSError as error:
                raise StorageError(Reason.MODEL_DIR_UNUSABLE, f"the free space is unknown: {error}") from None
            promised = [self._held[other] - got() for other, got in self._written.items() if other != key]
            free = max(free - sum(promised), 0)
            missing = size - written()
            if missing > free:
                raise StorageError(
                    Reason.DISK_FULL, f"{human(missing)} more are needed and {human(free)} are free."
                )
            self._set(key, size)
            self._written[key] = written

    @property
    def held(self) -> int:
        """Bytes that all models hold."""
        with self._lock:
            return self._total

    def _set(self, key: str, size: int) -> None:
        self._total += size - self._held.get(key, 0)
        self._held[key] = size


MAX_DEPTH = 100
"""Directories within each other in a model."""
_MAX_PATH = 2048
"""Bytes of a path in a model: the kernel takes 4096, with the model directory before it."""


def safe_path(path: str) -> str:
    """The path of a file of a model, relative to its directory, or StorageError for one that would land
    outside, or that no file system takes."""
    if len(path.encode(errors="surrogatepass")) > _MAX_PATH or path.count("/") > MAX_DEPTH:
        raise StorageError(
            Reason.HOSTILE_PATH,
            f"the path {path[:80]!r}… has over {_MAX_PATH} bytes, or is over {MAX_DEPTH} directories deep.",
        )
    parts = path.split("/")
    if (
        not path
        or path.startswith("/")
        or any(part in ("", ".", "..") or len(part.encode(errors="surrogatepass")) > 255 for part in parts)
        or not path.isprintable()
    ):
        raise StorageError(Reason.HOSTILE_PATH, f"the path {path!r} is not allowed in a model's directory.")
    return path


async def in_thread(work: Callable[[], T], cancel: Callable[[], None] = lambda: None) -> T:
    """Run blocking work in a thread. When cancelled, call `cancel` and wait for the thread to end: no
    write may outlive the descriptor or the directory it goes to."""
    future = asyncio.get_running_loop().run_in_executor(None, work)
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
