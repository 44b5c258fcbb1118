"""Bytes from a store to files: ranged, concurrent, resumed after a break.

An attempt survives broken connections and refusals as long as bytes arrive. The `Transfer` keeps its parts,
and the next attempt continues with them.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from puller.reasons import StatusReason
from puller.storage.base import FetchProgress, Limits, StorageError, in_thread
from puller.storage.connections import Connections
from puller.storage.objects import RemoteObject, StoredContent

if TYPE_CHECKING:
    from obstore import Bytes

_CLOSED_EARLY = StorageError(StatusReason.STORAGE_UNAVAILABLE, "the connection closed early.", transient=True)


@dataclass(slots=True)
class _Part:
    """A range of an object for one connection; `done` bytes of it are in the file."""

    item: RemoteObject
    start: int
    length: int
    done: int = 0


@dataclass
class Transfer:
    """The download of one model's objects into a directory, over one or more attempts."""

    limits: Limits
    connections: Connections
    progress: FetchProgress
    _parts: dict[RemoteObject, list[_Part]] = field(default_factory=dict)

    async def run(self, source: StoredContent, into: Path) -> None:
        """Fetch every object to its path below `into`. Raises StorageError; the next call continues."""
        for item in self._parts.keys() - set(source.objects):
            del self._parts[item]
            await in_thread(_remove, into, item.path)
        new = [item for item in source.objects if item not in self._parts]
        allocated = [item for item in new if not 0 < item.size <= self.limits.chunk_size]
        if allocated:
            await in_thread(_allocate, into, allocated)
        self._parts |= {item: _split(item, self.limits) for item in new}
        pending = [part for parts in self._parts.values() for part in parts if part.done < part.length]
        self.progress.total = source.size
        self.progress.done = source.size - sum(part.length - part.done for part in pending)
        queue = iter(pending)
        await _run_all(
            self._fetch_parts(queue, into) for _ in range(min(len(pending), self.limits.connections))
        )

    async def _fetch_parts(self, queue: Iterator[_Part], into: Path) -> None:
        for part in queue:
            fetch = self._fetch_small if part.item.size <= self.limits.chunk_size else self._fetch
            try:
                while part.done < part.length:  # again if another model needed the connection
                    async with self.connections.use(self, revocable=part.item.ranges):
                        await fetch(part, into / part.item.path)
            except StorageError as error:
                if error.reason is StatusReason.SOURCE_CHANGED and not part.item.version:
                    self._parts.pop(part.item, None)  # all its parts may be of another version
                raise

    async def _fetch_small(self, part: _Part, path: Path) -> None:
        """Write an object of one chunk at once: with small files, switching threads is the main cost."""
        content = [chunk async for chunk in chunks(part.item, 0, part.length, self.limits, self.progress)]
        await in_thread(_write_file, path, content)
        part.done = part.length
        self.progress.done += part.length

    async def _fetch(self, part: _Part, path: Path) -> None:
        if not part.item.ranges:
            self.progress.done -= part.done
            part.done = 0
        descriptor = os.open(path, os.O_WRONLY)
        try:
            start, end = part.start + part.done, part.start + part.length
            async with aclosing(chunks(part.item, start, end, self.limits, self.progress)) as stream:
                async for chunk in stream:
                    await in_thread(write_at, descriptor, chunk, part.start + part.done)
                    part.done += len(chunk)
                    self.progress.done += len(chunk)
            # Flush each complete file now, while others are fetched, and not all of them at the end.
            # The last parts begin last, so checking them first usually ends the check at once.
            if all(other.done == other.length for other in reversed(self._parts[part.item])):
                await in_thread(os.fsync, descriptor)
        finally:
            os.close(descriptor)


async def chunks(
    item: RemoteObject, start: int, end: int, limits: Limits, progress: FetchProgress
) -> AsyncGenerator[Bytes | bytes]:
    """The bytes [start, end) of an object, in order. Resumes after a break, with capped exponential backoff,
    until `retry_timeout` passes without a byte. Raises StorageError."""
    offset, delay, failing_since = start, limits.retry_initial, 0.0
    clock = asyncio.get_running_loop().time
    while offset < end:
        # A slow store may send bytes, but no whole chunk in time.
        min_chunk = 1 if progress.slow else limits.chunk_size
        try:
            async with aclosing(_request(item, offset, end, limits, min_chunk)) as stream:
                async for chunk in stream:
                    yield chunk
                    offset += len(chunk)
                    delay, failing_since, progress.message = limits.retry_initial, 0.0, ""
            if not item.sized:
                return
            if offset < end:
                raise _CLOSED_EARLY
        except StorageError as error:
            failing_since = failing_since or clock()
            progress.slow = progress.slow or error.reason is StatusReason.STORAGE_TIMEOUT
            resumable = item.ranges or offset == start
            if not error.transient or not resumable or clock() - failing_since > limits.retry_timeout:
                raise
            progress.message = str(error)
            await asyncio.sleep(delay * random.uniform(0.5, 1))  # noqa: S311  (jitter)
            delay = min(delay * 2, limits.retry_max)


async def _request(
    item: RemoteObject, start: int, end: int, limits: Limits, min_chunk: int
) -> AsyncGenerator[Bytes | bytes]:
    """The bytes of one request."""
    async with aclosing(item.store.read(item, start, end, limits, min_chunk)) as stream:
        async for chunk in stream:
            start += len(chunk)
            if start > end:
                raise StorageError(
                    StatusReason.SOURCE_CHANGED, f"{item.path} has more bytes than were requested."
                )
            yield chunk


async def _run_all(work: Iterator[Coroutine[Any, Any, None]]) -> None:
    """Run all. After the first failure, cancel the others, wait for them, and raise it."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        for done in asyncio.as_completed(tasks):
            await done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _split(item: RemoteObject, limits: Limits) -> list[_Part]:
    size = limits.part_size if item.ranges else max(item.size, 1)
    return [_Part(item, start, min(size, item.size - start)) for start in range(0, item.size, size)]


def _remove(into: Path, path: str) -> None:
    """Remove a file, and the directories that it leaves empty: the source has them no longer."""
    (into / path).unlink(missing_ok=True)
    with suppress(OSError):
        for parent in PurePosixPath(path).parents[:-1]:
            (into / parent).rmdir()


def _allocate(into: Path, items: list[RemoteObject]) -> None:
    """Create the files at their full length, so that parts can be written in any order."""
    for item in items:
        path = into / item.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(item.size)


def _write_file(path: Path, content: Sequence[Bytes | bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.writelines(content)
        file.flush()
        os.fsync(file.fileno())


def write_at(descriptor: int, chunk: Bytes | bytes, offset: int) -> None:
    view = memoryview(chunk)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
