"""Bytes from a store to files: ranged, concurrent, resumed where they broke off, verified.

An attempt outlives broken connections and refusals as long as bytes keep coming; what it has got stays
with the `Transfer`, and the next attempt goes on from there.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puller.reasons import Reason
from puller.storage.base import Limits, Progress, StorageError, in_thread
from puller.storage.objects import RemoteObject, Source

if TYPE_CHECKING:
    from obstore import Bytes

_CLOSED_EARLY = StorageError(Reason.STORAGE_UNAVAILABLE, "the connection closed early.", passing=True)


@dataclass(slots=True)
class _Part:
    """A range of an object that one connection fetches; `done` bytes of it are in the file."""

    item: RemoteObject
    start: int
    length: int
    done: int = 0


@dataclass
class Transfer:
    """The download of one model's objects into a directory, over one or more attempts."""

    limits: Limits
    connections: asyncio.Semaphore
    progress: Progress
    _parts: dict[RemoteObject, list[_Part]] = field(default_factory=dict)

    async def run(self, source: Source, into: Path) -> None:
        """Fetch every object to its path below `into`. Raises StorageError; may be called again."""
        for item in self._parts.keys() - set(source.objects):
            del self._parts[item]
            await asyncio.to_thread((into / item.path).unlink, missing_ok=True)
        fresh = [item for item in source.objects if item not in self._parts]
        sized = [item for item in fresh if not 0 < item.size <= self.limits.chunk_size]
        if sized:
            await in_thread(partial(_create, into, sized))
        self._parts |= {item: _split(item, self.limits) for item in fresh}
        pending = [part for parts in self._parts.values() for part in parts if part.done < part.length]
        self.progress.total = source.size
        self.progress.done = source.size - sum(part.length - part.done for part in pending)
        queue = iter(pending)
        await together(self._drain(queue, into) for _ in range(min(len(pending), self.limits.connections)))

    async def _drain(self, queue: Iterator[_Part], into: Path) -> None:
        for part in queue:
            async with self.connections:
                if part.item.size <= self.limits.chunk_size:
                    await self._fetch_small(part, into / part.item.path)
                else:
                    await self._fetch(part, into / part.item.path)

    async def _fetch_small(self, part: _Part, path: Path) -> None:
        """An object of one chunk goes to its file in one go: with small files, hand-overs are the cost."""
        found = [chunk async for chunk in chunks(part.item, 0, part.length, self.limits, self.progress)]
        await in_thread(partial(_write_whole, path, found))
        part.done = part.length
        self.progress.done += part.length

    async def _fetch(self, part: _Part, path: Path) -> None:
        if not part.item.ranges:
            self.progress.done -= part.done
            part.done = 0
        descriptor = os.open(path, os.O_WRONLY)
        try:
            stream = chunks(
                part.item, part.start + part.done, part.start + part.length, self.limits, self.progress
            )
            async with aclosing(stream):
                async for chunk in stream:
                    await in_thread(partial(write_at, descriptor, chunk, part.start + part.done))
                    part.done += len(chunk)
                    self.progress.done += len(chunk)
            # To stable storage as files come in, side by side, rather than all of them at the end.
            # The last parts are begun last: looked at first, they make this one look, not one for each part.
            if all(other.done == other.length for other in reversed(self._parts[part.item])):
                await in_thread(partial(os.fsync, descriptor))
        finally:
            os.close(descriptor)


async def chunks(
    item: RemoteObject, start: int, end: int, limits: Limits, progress: Progress
) -> AsyncGenerator[Bytes | bytes]:
    """The bytes [start, end) of an object, in order. Goes on after a break from where it was, with capped
    exponential backoff, until `trouble_timeout` passes without a byte. Raises StorageError."""
    offset, delay, trouble_since = start, limits.retry_initial, 0.0
    clock = asyncio.get_running_loop().time
    while offset < end:
        # A slow store may give bytes, but no whole chunk in time: then take each piece as it comes.
        size = 1 if progress.slow else limits.chunk_size
        try:
            async with aclosing(_request(item, offset, end, limits, size)) as stream:
                async for chunk in stream:
                    yield chunk
                    offset += len(chunk)
                    delay, trouble_since, progress.trouble = limits.retry_initial, 0.0, ""
            if not item.sized:
                return
            if offset < end:
                raise _CLOSED_EARLY
        except StorageError as problem:
            trouble_since = trouble_since or clock()
            progress.slow = progress.slow or problem.reason is Reason.STORAGE_TIMEOUT
            resumable = item.ranges or offset == start
            if not problem.passing or not resumable or clock() - trouble_since > limits.trouble_timeout:
                raise
            progress.trouble = str(problem)
            await asyncio.sleep(delay * random.uniform(0.5, 1))  # noqa: S311  (jitter)
            delay = min(delay * 2, limits.retry_max)


async def _request(
    item: RemoteObject, start: int, end: int, limits: Limits, chunk_size: int
) -> AsyncGenerator[Bytes | bytes]:
    """One request's bytes, `chunk_size` or more at a time: `stall_timeout` bounds the wait for each."""
    async with aclosing(item.store.pieces(item, start, end, limits, chunk_size)) as stream:
        async for chunk in stream:
            start += len(chunk)
            if start > end:
                raise StorageError(
                    Reason.SOURCE_CHANGED, f"{item.path} gives more bytes than were asked for."
                )
            yield chunk


async def together(work: Iterator[Coroutine[Any, Any, None]]) -> None:
    """Run all; the first failure cancels the others, waits for them and is raised as it is."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        for done in asyncio.as_completed(tasks):
            await done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def verify(source: Source, into: Path, expected: str) -> None:
    """Compare the digests that the store and the user gave with the files. Raises StorageError."""
    digests: dict[str, str] = {}
    for item in source.objects:
        if expected or item.sha256:
            digests[item.path] = _file_sha256(into / item.path)
        if item.sha256 and digests[item.path] != item.sha256:
            raise StorageError(
                Reason.DIGEST_MISMATCH, f"{item.path} does not have the SHA-256 its store lists."
            )
    if expected:
        check_digest(digests.popitem()[1] if len(digests) == 1 else listing_sha256(digests), expected)


def check_digest(actual: str, expected: str) -> None:
    """Raises StorageError where the digests differ."""
    if actual != expected:
        raise StorageError(Reason.DIGEST_MISMATCH, f"the SHA-256 is {actual}, the config wants {expected}.")


def listing_sha256(digests: dict[str, str]) -> str:
    """One digest of many files: the SHA-256 of the lines `sha256sum` prints for them, sorted by path."""
    lines = "".join(f"{digests[path]}  {path}\n" for path in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def _split(item: RemoteObject, limits: Limits) -> list[_Part]:
    size = limits.part_size if item.ranges else max(item.size, 1)
    return [_Part(item, start, min(size, item.size - start)) for start in range(0, item.size, size)]


def _create(into: Path, items: list[RemoteObject]) -> None:
    """The files at their full length, so that parts can be written in any order."""
    for item in items:
        path = into / item.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(item.size)


def _write_whole(path: Path, content: Sequence[Bytes | bytes]) -> None:
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


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
