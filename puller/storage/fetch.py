"""One model from its URI to a staged tree, in one or more attempts."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from puller.files import remove_tree, tree_size
from puller.log import logger
from puller.model_config import ModelSpec
from puller.reasons import BAD_CONTENT, NO_ROOM, StatusReason
from puller.storage import local
from puller.storage.base import FetchProgress, Limits, StorageError, in_thread
from puller.storage.cache import RENEWAL, Lock, SharedCache
from puller.storage.connections import Connections
from puller.storage.disk_budget import DiskBudget
from puller.storage.objects import Layer, RemoteObject, StoredContent, archive_kind
from puller.storage.resumable_download import Transfer, chunks, write_at
from puller.storage.source import over_web, resolve
from puller.store import archive_dir

if TYPE_CHECKING:
    from obstore import Bytes

    from puller.storage.archive import Unpacker
    from puller.storage.webclient import WebClient

_CACHE_POLL = 2.0
"""Seconds between reads of the cache while another puller downloads."""
LONGEST_WAIT = 3600.0
"""Seconds to wait for another puller's download into the cache."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Storage:
    """Shared by all fetches. `linger`: seconds for which idle connections to web servers are kept; `close`
    closes them. `cache`: on a volume that pods share."""

    env: Mapping[str, str]
    limits: Limits
    budget: DiskBudget
    pvc_dir: Path
    connections: Connections
    linger: float = 0.0
    cache: SharedCache | None = None

    @cached_property
    def web(self) -> WebClient:
        """The connections to web servers."""
        from puller.storage.webclient import WebClient

        return WebClient(self.limits, self.linger)

    async def close(self) -> None:
        if "web" in self.__dict__:
            await self.web.close()


@dataclass
class Fetch:
    """The fetch of one spec into `staging`. After a StorageError, the next `run` continues with the files
    that are there. If `run` is cancelled, its threads end before it does. `yield_slot`: lets other models
    download for some seconds, while another puller downloads this one."""

    spec: ModelSpec
    staging: Path
    storage: Storage
    yield_slot: Callable[[float], Awaitable[None]] = asyncio.sleep
    progress: FetchProgress = field(default_factory=FetchProgress)
    _transfer: Transfer | None = None
    _unwritten: tuple[str, bytes] | None = None
    """Path and content of a short object, to be written by the thread that finishes the tree."""
    _bad: tuple[StoredContent, int, StorageError] | None = None
    """Content that was bad, how many times, and why."""
    _unpacked: tuple[tuple[Layer, ...], int] = ((), 0)
    """Archives that are in the tree already, and their unpacked bytes."""

    @property
    def key(self) -> str:
        """The name of this fetch in the disk budget; the model's installed tree has another."""
        return f"{self.spec.name}/"

    @property
    def files_lost(self) -> bool:
        """Whether somebody deleted the files of an earlier attempt."""
        present = self.staging.exists() or archive_dir(self.staging).exists()
        return self._transfer is not None and not present

    async def run(self, then: Callable[[Path], Any] = lambda tree: tree) -> Any:
        """Fetch and verify the tree. Returns the result of `then`, which gets the complete tree in a thread.
        Raises StorageError."""
        self.progress.message, self._unwritten = "", None
        try:
            if urlsplit(self.spec.storage_uri).scheme in ("file", "pvc"):
                await self._fetch_local()
            elif self.storage.cache is not None:
                await self._fetch_cached(self.storage.cache)
            else:
                await self._fetch_remote()
            return await in_thread(lambda: then(self._tree()))
        except (StorageError, OSError) as error:
            failure = error if isinstance(error, StorageError) else _storage_error(error)
            await self._keep_resumable(failure)
            raise failure from None

    async def _keep_resumable(self, failure: StorageError) -> None:
        """After a failed attempt, keep only files that the next one needs, on the disk and in the budget.
        Without room keep none: two half-fetched models could block each other for ever. Nor if a file cannot
        be written: perhaps somebody removed it."""
        if failure.reason in NO_ROOM or failure.reason is StatusReason.MODEL_DIR_UNUSABLE:
            self._transfer = None
        if self._transfer is None:
            with suppress(OSError):
                await in_thread(remove_tree, self.staging)
                await in_thread(remove_tree, archive_dir(self.staging))
            self.storage.budget.release(self.key)
            self.progress.done = 0
        else:
            self.storage.budget.set_used(self.key, self.progress.done)

    async def _fetch_cached(self, cache: SharedCache) -> None:
        """Copy the model from the cache, or download it into the cache unless another puller does so. A
        puller that renews its lock for ever makes the others wait only for LONGEST_WAIT seconds."""
        if self._unpacked_pin:
            await self._fetch_remote()
            return
        began = time.monotonic()
        while not await self._copy_cached(cache):
            try:
                lock = await in_thread(cache.lock, self.spec)
            except OSError as error:
                logger.debug("cache without a lock", error=str(error))
                await self._fetch_remote()
                return
            if lock is None and time.monotonic() - began > LONGEST_WAIT:
                logger.warning("cache not waited for", model=self.spec.name, seconds=LONGEST_WAIT)
                self.progress.message = ""
                await self._fetch_remote()
                return
            if lock is not None:
                await self._fill_cache(cache, lock)
                return
            self.progress.message = "another puller downloads it into the shared cache"
            await self.yield_slot(_CACHE_POLL)

    async def _copy_cached(self, cache: SharedCache) -> bool:
        if self._transfer is not None:  # this attempt continues an earlier download
            return False
        await self._clear()
        stopped = threading.Event()

        def reserve(size: int) -> None:
            self._reserve(size, lambda: self.progress.done)

        found = await in_thread(
            cache.take, self.spec, self.staging, self.progress, stopped.is_set, reserve, cancel=stopped.set
        )
        if found and self.spec.sha256:
            found = await in_thread(tree_sha256, self.staging) == self.spec.sha256
            if not found:
                logger.warning("cache entry not usable", model=self.spec.name, error="it has another SHA-256")
                await in_thread(cache.drop, self.spec)
        if not found:
            await self._clear()
            self.progress.done = 0
        return found

    @property
    def _unpacked_pin(self) -> bool:
        """Whether the config pins a digest that an unpacked tree no longer shows: an entry of the cache
        could not be checked against it."""
        uri = self.spec.storage_uri
        if uri.startswith("oci://"):
            return bool(self.spec.sha256) or "@sha256:" in uri
        return bool(self.spec.sha256) and archive_kind(urlsplit(uri).path) != ""

    async def _fill_cache(self, cache: SharedCache, lock: Lock) -> None:
        """Download while holding the lock, and put a copy into the cache."""
        self.progress.message = ""

        async def renew() -> None:
            while True:
                await asyncio.sleep(RENEWAL)
                await in_thread(lock.renew)

        renewing = asyncio.create_task(renew())
        try:
            if await self._copy_cached(cache):  # another puller filled it just before the lock
                return
            await self._fetch_remote()
            stopped = threading.Event()
            await in_thread(lambda: cache.put(self.spec, self._tree(), stopped.is_set), cancel=stopped.set)
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            await in_thread(lock.release)

    async def _fetch_remote(self) -> None:
        storage, spec = self.storage, self.spec
        async with storage.web if over_web(spec.storage_uri) else nullcontext() as web:
            async with storage.connections.use(self) if web is not None else nullcontext():
                source = await resolve(spec.storage_uri, spec.files, storage.env, storage.limits, web)
            if self._bad is not None and self._bad[0] == source and self._bad[1] > 1:
                raise self._bad[2]  # bad twice: not downloaded again until it is replaced
            if source.digest and spec.sha256:
                check_digest(source.digest, spec.sha256)
            try:
                await self._fetch_source(source)
            except StorageError as error:
                self._record_bad(source, error)
                raise

    def _record_bad(self, source: StoredContent, error: StorageError) -> None:
        """Count bad content. It is downloaded once more: the network may have been the cause."""
        if error.reason in BAD_CONTENT:
            self._transfer = None
            if all(item.etag or item.sha256 for item in source.all_objects):
                times = self._bad[1] + 1 if self._bad is not None and self._bad[0] == source else 1
                self._bad = (replace(source, whole=b""), times, error)

    async def _fetch_source(self, source: StoredContent) -> None:
        if source.layers:
            await self._fetch_layers(source)
        elif not source.sized:
            await self._fetch_unsized(source)
        else:
            self._reserve(source.size, lambda: self.progress.done)
            if source.whole and not source.zipped:
                self._take_whole(source)
            elif source.zipped:
                scratch = archive_dir(self.staging)
                await asyncio.to_thread(scratch.mkdir, parents=True, exist_ok=True)
                await self._transfer_files(source, scratch, self.spec.sha256)
                await self._unzip(scratch / source.objects[0].path, source.size)
            else:
                await self._transfer_files(source, self.staging, "" if source.digest else self.spec.sha256)

    async def _transfer_files(self, source: StoredContent, into: Path, sha256: str) -> None:
        if self._transfer is None:
            self._transfer = Transfer(self.storage.limits, self.storage.connections, self.progress)
        await self._transfer.run(source, into)
        if sha256 or any(item.sha256 for item in source.objects):
            await asyncio.to_thread(verify, source, into, sha256)

    async def _fetch_layers(self, source: StoredContent) -> None:
        """Unpack the tar archives as streams, in their order, then fetch the files. Only the files resume in
        the next attempt."""
        files = sum(item.size for item in source.objects)
        archives = source.size - files
        if self._transfer is None or self._unpacked[0] != source.layers:
            self._transfer = None
            await self._clear()
            self.progress.done, self.progress.total = 0, source.size
            await self._unpack_layers(source, files)
            self._unpacked = source.layers, await asyncio.to_thread(tree_size, self.staging)
        if source.objects:
            unpacked = self._unpacked[1]
            self._reserve(unpacked + files, lambda: unpacked + max(self.progress.done - archives, 0))
            await self._transfer_files(source, self.staging, "")
        self._check_not_empty()

    async def _unpack_layers(self, source: StoredContent, pending: int) -> None:
        """`pending`: bytes of the files that follow."""
        stopped = threading.Event()
        subtree = source.layers[0].subtree
        # A whole archive does not shrink when it is unpacked.
        least = 0 if self.spec.files or subtree else source.size - pending
        unpacker = self._unpacker(
            lambda: self.progress.done, stopped, least, pending=pending, subtree=subtree
        )
        for layer in source.layers:
            expected = layer.item.sha256 or self.spec.sha256
            reader = _Reader(layer.item, self.storage, self.progress, digest=expected != "")

            def cancel(reader: _Reader = reader) -> None:
                stopped.set()
                reader.stop()

            try:
                add = partial(unpacker.add, cast(IO[bytes], reader), layer.kind, verified=expected != "")
                await in_thread(add, cancel=cancel)
            finally:
                await reader.close()
            if expected:
                check_digest(reader.sha256, expected)
        await in_thread(unpacker.finish, cancel=stopped.set)

    def _take_whole(self, source: StoredContent) -> None:
        """One short object, whose content came with the first response. It is written by the thread that
        finishes the tree: with small models, switching threads is the main cost."""
        self._transfer = None
        (item,) = source.objects
        if self.spec.sha256:
            check_digest(hashlib.sha256(source.whole).hexdigest(), self.spec.sha256)
        self._unwritten = item.path, source.whole
        self.progress.done = self.progress.total = source.size

    def _tree(self) -> Path:
        """The complete tree."""
        if self._unwritten is not None:
            path, content = self._unwritten
            self._unwritten = None
            self.staging.mkdir(parents=True, exist_ok=True)
            (self.staging / path).write_bytes(content)
        return self.staging

    async def _fetch_unsized(self, source: StoredContent) -> None:
        """One object of unknown size: reserve room as it grows."""
        self._transfer = None
        await self._clear()
        (item,) = source.objects
        self.progress.done = self.progress.total = 0
        into = archive_dir(self.staging) if source.zipped else self.staging
        await asyncio.to_thread(into.mkdir, parents=True, exist_ok=True)
        path = into / item.path
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            stream = chunks(item, 0, sys.maxsize, self.storage.limits, self.progress)
            async with self.storage.connections.use(self), aclosing(stream):
                async for chunk in stream:
                    self._reserve(self.progress.done + len(chunk), lambda: self.progress.done)
                    await in_thread(write_at, descriptor, chunk, self.progress.done)
                    self.progress.done += len(chunk)
            await in_thread(os.fsync, descriptor)
        finally:
            os.close(descriptor)
        self.progress.total = self.progress.done
        await asyncio.to_thread(verify, source, into, self.spec.sha256)
        if source.zipped:
            await self._unzip(path, self.progress.done)

    async def _unzip(self, path: Path, size: int) -> None:
        downloaded = size if path.is_relative_to(archive_dir(self.staging)) else 0
        await self._unpack(lambda unpacker: unpacker.zip(path), lambda: size, size, downloaded)

    async def _fetch_local(self) -> None:
        await self._clear()
        root = await asyncio.to_thread(local.local_path, self.spec.storage_uri, self.storage.pvc_dir)
        items = await asyncio.to_thread(local.listing, root, self.spec.files)
        self.progress.done, self.progress.total = 0, sum(size for _, _, size in items)
        kind = archive_kind(root.name) if len(items) == 1 and items[0][0] == root else ""
        if kind == "zip":
            await self._unzip(root, items[0][2])
        elif kind:
            with root.open("rb") as stream:
                verified = self.spec.sha256 != ""
                await self._unpack(
                    lambda unpacker: unpacker.tar(stream, kind, verified=verified), stream.tell, items[0][2]
                )
        else:
            self._reserve(self.progress.total, lambda: self.progress.done)
            stopped = threading.Event()
            await in_thread(
                local.take, items, self.staging, self.progress, stopped.is_set, cancel=stopped.set
            )
        if self.spec.sha256:
            objects = tuple(RemoteObject(None, "", path, size) for _, path, size in items)  # type: ignore[arg-type]
            into = root.parent if kind else self.staging
            await asyncio.to_thread(verify, StoredContent(objects), into, self.spec.sha256)
        self.progress.done = self.progress.total

    async def _unpack(
        self,
        work: Callable[[Unpacker], None],
        consumed: Callable[[], int],
        size: int,
        downloaded: int = 0,
    ) -> None:
        """Unpack an archive of `size` bytes in a thread. `downloaded`: bytes of it in the model directory."""
        await self._clear()
        stopped = threading.Event()
        unpacker = self._unpacker(consumed, stopped, 0 if self.spec.files else size, downloaded=downloaded)
        try:
            await in_thread(work, unpacker, cancel=stopped.set)
        except (StorageError, OSError):
            await in_thread(remove_tree, self.staging)
            raise
        self._check_not_empty()

    def _unpacker(
        self,
        consumed: Callable[[], int],
        stopped: threading.Event,
        least: int,
        *,
        downloaded: int = 0,
        pending: int = 0,
        subtree: str = "",
    ) -> Unpacker:
        """An unpacker into the staged tree. It reserves room for the unpacked bytes, at least `least`, next
        to `downloaded` bytes that are on disk and `pending` bytes that follow."""
        from puller.storage.archive import Unpacker

        unpacked = 0

        def reserve(size: int) -> None:
            nonlocal unpacked
            self._reserve(downloaded + pending + max(size, least), lambda: downloaded + unpacked)
            unpacked = size

        reserve(0)
        limits = self.storage.limits
        return Unpacker(
            self.staging, self.spec.files, limits, consumed, reserve, stopped.is_set, subtree=subtree
        )

    def _check_not_empty(self) -> None:
        if not any(files for _, _, files in os.walk(self.staging)):
            raise StorageError(StatusReason.NOT_FOUND, "the archive or image has no file that is selected.")

    async def _clear(self) -> None:
        def clear() -> None:
            remove_tree(self.staging)
            self.staging.mkdir(parents=True)

        await in_thread(clear)

    def _reserve(self, size: int, written: Callable[[], int]) -> None:
        self.storage.budget.reserve(self.key, size, written)


def _storage_error(error: OSError) -> StorageError:
    if isinstance(error, TimeoutError) and error.errno is None:  # of asyncio, not of a system call
        return StorageError(StatusReason.STORAGE_TIMEOUT, "the storage did not answer in time.")
    reason = StatusReason.DISK_FULL if error.errno in _FULL else StatusReason.MODEL_DIR_UNUSABLE
    return StorageError(reason, f"the model directory cannot be written: {error.strerror or error}.")


class _Reader:
    """An object as a blocking stream for a thread. The event loop fetches ahead."""

    def __init__(
        self, item: RemoteObject, storage: Storage, progress: FetchProgress, *, digest: bool
    ) -> None:
        self._item = item
        self._storage = storage
        self._progress = progress
        self._sha256 = hashlib.sha256() if digest else None
        self._loop = asyncio.get_running_loop()
        self._ahead: asyncio.Queue[Bytes | bytes | Exception | None] = asyncio.Queue(maxsize=2)
        self._fetching = self._loop.create_task(self._fetch())
        self._chunk = memoryview(b"")
        self._error: Exception | None = None
        self._at_end = False

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes, none at the end. Called in the thread."""
        if self._error is not None:
            raise self._error
        if not self._chunk and not self._at_end:
            self._next_chunk(asyncio.run_coroutine_threadsafe(self._ahead.get(), self._loop).result())
        block = self._chunk if size < 0 else self._chunk[:size]
        self._chunk = self._chunk[len(block) :]
        return bytes(block)

    def stop(self) -> None:
        """Make the next read fail. Called in the event loop."""
        self._fetching.cancel()
        while not self._ahead.empty():
            self._ahead.get_nowait()
        self._ahead.put_nowait(StorageError(StatusReason.CANCELLED, "the model is no longer wanted."))

    async def close(self) -> None:
        self._fetching.cancel()
        await asyncio.gather(self._fetching, return_exceptions=True)

    @property
    def sha256(self) -> str:
        """The digest of all bytes read."""
        return self._sha256.hexdigest() if self._sha256 else ""

    def _next_chunk(self, chunk: Bytes | bytes | Exception | None) -> None:
        if isinstance(chunk, Exception):
            self._error = chunk
            raise chunk
        if chunk is None:
            self._at_end = True
            return
        self._chunk = memoryview(chunk)
        self._progress.done += len(self._chunk)
        if self._sha256:
            self._sha256.update(self._chunk)

    async def _fetch(self) -> None:
        end = self._item.size if self._item.sized else sys.maxsize
        stream = chunks(self._item, 0, end, self._storage.limits, self._progress)
        try:
            async with self._storage.connections.use(self), aclosing(stream):
                async for chunk in stream:
                    await self._ahead.put(chunk)
        except StorageError as error:
            await self._ahead.put(error)
        else:
            await self._ahead.put(None)


# --- checksums ------------------------------------------------------------------------------------


def verify(source: StoredContent, into: Path, expected: str) -> None:
    """Compare the files with the digests of the store and of the config. Raises StorageError."""
    digests: dict[str, str] = {}
    for item in source.objects:
        if expected or item.sha256:
            digests[item.path] = _file_sha256(into / item.path)
        if item.sha256 and digests[item.path] != item.sha256:
            raise StorageError(
                StatusReason.DIGEST_MISMATCH, f"{item.path} does not have the SHA-256 its store lists."
            )
    if expected:
        check_digest(digests.popitem()[1] if len(digests) == 1 else listing_sha256(digests), expected)


def tree_sha256(directory: Path) -> str:
    """The digest of a tree as `sha256` of a model gives it: of its one file, or of the listing of all."""
    digests = {path: _file_sha256(file) for file, path, _ in local.listing(directory, ())}
    return digests.popitem()[1] if len(digests) == 1 else listing_sha256(digests)


def check_digest(actual: str, expected: str) -> None:
    """Raises StorageError if the digests differ."""
    if actual != expected:
        raise StorageError(StatusReason.DIGEST_MISMATCH, f"the SHA-256 is {actual}, expected {expected}.")


def listing_sha256(digests: dict[str, str]) -> str:
    """One digest of many files: the SHA-256 of the lines `sha256sum` prints for them, sorted by path."""
    lines = "".join(f"{digests[path]}  {path}\n" for path in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
