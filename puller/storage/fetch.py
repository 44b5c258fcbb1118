"""One model from its URI to a staged tree, over as many attempts as it takes."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast, overload
from urllib.parse import urlsplit

from puller.log import logger
from puller.reasons import BAD_CONTENT, NO_ROOM, Reason
from puller.spec import ModelSpec
from puller.storage import local
from puller.storage.base import DiskBudget, Limits, Progress, StorageError, in_thread
from puller.storage.cache import RENEWAL, Cache, Lock
from puller.storage.objects import Layer, RemoteObject, Source, archive_kind
from puller.storage.source import over_web, resolve
from puller.storage.transfer import Transfer, check_digest, chunks, verify, write_at
from puller.store import beside, remove_tree, tree_size

if TYPE_CHECKING:
    from obstore import Bytes

    from puller.storage.archive import Unpacker
    from puller.storage.layers import LayerUnpacker
    from puller.storage.webclient import WebClient

T = TypeVar("T")

_LOOK = 2.0
"""Seconds between looks at the cache while another puller downloads."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Storage:
    """What all fetches share."""

    env: Mapping[str, str]
    limits: Limits
    budget: DiskBudget
    claims: Path
    connections: asyncio.Semaphore
    linger: float = 0.0
    cache: Cache | None = None
    """`linger`: seconds for which idle connections to web servers are kept; `close` ends them. `cache`: on a
    volume that pods share."""

    @cached_property
    def web(self) -> WebClient:
        """The connections to plain web servers."""
        from puller.storage.webclient import WebClient

        return WebClient(self.limits, self.linger)

    async def close(self) -> None:
        if "web" in self.__dict__:
            self.web.close()


@dataclass
class Fetch:
    """The fetch of one spec into `staging`. `run` may be called again after a StorageError and goes on
    with what it has; cancelling it leaves no thread behind that still writes."""

    spec: ModelSpec
    staging: Path
    storage: Storage
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Lets others work for so many seconds, while another puller downloads the model."""
    progress: Progress = field(default_factory=Progress)
    _transfer: Transfer | None = None
    _whole: tuple[str, bytes] | None = None
    """Path and content of a short object that is not written yet."""
    _bad: tuple[Source, int, StorageError] | None = None
    _unpacked: tuple[tuple[Layer, ...], int] = ((), 0)
    """Archives that are in the tree already, and the bytes that they gave."""

    @property
    def key(self) -> str:
        """The name of this fetch in the disk budget; the model's installed tree has another."""
        return f"{self.spec.name}/"

    @property
    def lost(self) -> bool:
        """Whether what it would go on with is there no more."""
        return self._transfer is not None and not (self.staging.exists() or beside(self.staging).exists())

    @overload
    async def run(self) -> Path: ...

    @overload
    async def run(self, then: Callable[[Path], T]) -> T: ...

    async def run(self, then: Callable[[Path], Any] = lambda tree: tree) -> Any:
        """What `then` makes, in a thread, of the complete and verified tree. Raises StorageError."""
        self.progress.trouble, self._whole = "", None
        try:
            if urlsplit(self.spec.storage_uri).scheme in ("file", "pvc"):
                await self._take_local()
            elif self.storage.cache is not None:
                await self._take_cached(self.storage.cache)
            else:
                await self._take_remote()
            return await in_thread(lambda: then(self._written()))
        except (StorageError, OSError) as error:
            failure = error if isinstance(error, StorageError) else _explained(error)
            await self._give_back(failure)
            raise failure from None

    async def _give_back(self, failure: StorageError) -> None:
        """After an attempt that failed, keep only the files that the next one needs, on the disk and in the
        budget. Keep none if there was no room: two half-fetched models could block each other for ever."""
        if failure.reason in NO_ROOM:
            self._transfer = None
        if self._transfer is None:
            with suppress(OSError):
                await in_thread(self._empty)
            self.storage.budget.release(self.key)
            self.progress.done = 0
        else:
            self.storage.budget.hold(self.key, self.progress.done)

    async def _take_cached(self, cache: Cache) -> None:
        """From the shared cache; else from the storage and into it, unless another puller does that."""
        while not await self._copied(cache):
            try:
                lock = await in_thread(partial(cache.lock, self.spec))
            except OSError as error:
                logger.debug("cache without a lock", error=str(error))
                await self._take_remote()
                return
            if lock is not None:
                await self._take_and_keep(cache, lock)
                return
            self.progress.trouble = "another puller downloads it into the shared cache"
            await self.pause(_LOOK)

    async def _copied(self, cache: Cache) -> bool:
        if self._transfer is not None:  # an attempt that goes on with what it has
            return False
        await self._clear()
        stopped = threading.Event()

        def claim(size: int) -> None:
            self._reserve(size, lambda: self.progress.done)

        found = await in_thread(
            partial(cache.take, self.spec, self.staging, self.progress, stopped.is_set, claim),
            stopped.set,
        )
        if not found:
            await self._clear()
            self.progress.done = 0
        return found

    async def _take_and_keep(self, cache: Cache, lock: Lock) -> None:
        """Download while the lock is held, and put a copy into the cache."""
        self.progress.trouble = ""

        async def renew() -> None:
            while True:
                await asyncio.sleep(RENEWAL)
                await in_thread(lock.renew)

        renewing = asyncio.create_task(renew())
        try:
            if await self._copied(cache):  # it came between the look at the cache and the lock
                return
            await self._take_remote()
            stopped = threading.Event()
            await in_thread(lambda: cache.put(self.spec, self._written(), stopped.is_set), stopped.set)
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            await in_thread(lock.give_back)

    async def _take_remote(self) -> None:
        storage, spec = self.storage, self.spec
        async with storage.web if over_web(spec.storage_uri) else nullcontext() as web:
            async with storage.connections if web is not None else nullcontext():
                source = await resolve(spec.storage_uri, spec.files, storage.env, storage.limits, web)
            self._refuse_again(source)
            if source.digest and spec.sha256:
                check_digest(source.digest, spec.sha256)
            try:
                await self._take(source)
            except StorageError as error:
                self._remember(source, error)
                raise

    def _refuse_again(self, source: Source) -> None:
        """Content that was found bad twice over stays bad until it is replaced: do not pay for it again."""
        if self._bad is not None and self._bad[0] == source and self._bad[1] > 1:
            raise self._bad[2]

    def _remember(self, source: Source, error: StorageError) -> None:
        """Note bad content. The first time may have been the network's fault: it is fetched afresh once."""
        if error.reason in BAD_CONTENT:
            self._transfer = None
            if all(item.etag or item.sha256 for item in source.objects):
                times = self._bad[1] + 1 if self._bad is not None and self._bad[0] == source else 1
                self._bad = (replace(source, whole=b""), times, error)

    async def _take(self, source: Source) -> None:
        storage, spec = self.storage, self.spec
        if source.layers:
            await self._take_layers(source)
            return
        expected = "" if source.digest else spec.sha256
        if source.archive.startswith("tar"):
            await self._stream_tar(source)
            return
        if not source.sized:
            await self._take_unsized(source)
            return
        self._reserve(source.size, lambda: self.progress.done)
        if source.whole and not source.archive:
            self._take_whole(source)
            return
        self._transfer = self._transfer or Transfer(storage.limits, storage.connections, self.progress)
        if source.archive == "zip":
            scratch = beside(self.staging)
            await asyncio.to_thread(scratch.mkdir, parents=True, exist_ok=True)
            await self._transfer.run(source, scratch)
            await asyncio.to_thread(verify, source, scratch, spec.sha256)
            await self._unzip(scratch / source.objects[0].path, source.size)
            return
        await self._transfer.run(source, self.staging)
        if expected or any(item.sha256 for item in source.objects):
            await asyncio.to_thread(verify, source, self.staging, expected)

    async def _take_layers(self, source: Source) -> None:
        """Archives, one over the other, as streams; then the files, with which a further attempt goes on."""
        files = sum(item.size for item in source.objects)
        archives = source.size - files
        if self._transfer is None or self._unpacked[0] != source.layers:
            self._transfer = None
            await self._clear()
            self.progress.done, self.progress.total = 0, source.size
            await self._unpack_layers(source.layers, files)
            self._unpacked = source.layers, await asyncio.to_thread(tree_size, self.staging)
        held = self._unpacked[1]
        self._reserve(held + files, lambda: held + max(self.progress.done - archives, 0))
        self._transfer = self._transfer or Transfer(
            self.storage.limits, self.storage.connections, self.progress
        )
        await self._transfer.run(source, self.staging)
        await asyncio.to_thread(verify, source, self.staging, "")
        if not any(self.staging.iterdir()):
            raise StorageError(Reason.NOT_FOUND, "the image has no file below /models that is wanted.")

    async def _unpack_layers(self, layers: tuple[Layer, ...], later: int) -> None:
        """`later`: bytes that are still to come after these archives."""
        from puller.storage.layers import LayerUnpacker

        stopped = threading.Event()
        unpacked = 0

        def claim(size: int) -> None:
            nonlocal unpacked
            self._reserve(size + later, lambda: unpacked)
            unpacked = size

        claim(0)
        unpacker = LayerUnpacker(
            self.staging,
            self.spec.files,
            self.storage.limits,
            lambda: self.progress.done,
            claim,
            stopped.is_set,
            subtree=layers[0].subtree,
        )
        for number, layer in enumerate(layers, 1):
            reader = _Reader(layer.item, self.storage, self.progress, digest=True)
            try:
                await self._add_layer(unpacker, reader, layer.kind, stopped)
            finally:
                await reader.close()
            if reader.sha256 != layer.item.sha256:
                raise StorageError(
                    Reason.DIGEST_MISMATCH, f"archive {number} does not have the SHA-256 its manifest lists."
                )
        await in_thread(unpacker.finish, stopped.set)

    async def _add_layer(
        self, unpacker: LayerUnpacker, reader: _Reader, kind: str, stopped: threading.Event
    ) -> None:
        def cancel() -> None:
            stopped.set()
            reader.stop()

        unpacker.begin()
        await in_thread(lambda: unpacker.add(cast(IO[bytes], reader), kind), cancel)

    def _take_whole(self, source: Source) -> None:
        """One short object, whose content came with the first answer. The thread that finishes
        the tree writes it: with small models, hand-overs are the main cost."""
        self._transfer = None
        (item,) = source.objects
        if self.spec.sha256:
            check_digest(hashlib.sha256(source.whole).hexdigest(), self.spec.sha256)
        self._whole = item.path, source.whole
        self.progress.done = self.progress.total = source.size

    def _written(self) -> Path:
        """The tree, with nothing left to be written to it."""
        whole, self._whole = self._whole, None
        if whole is not None:
            path, content = whole
            self.staging.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.staging / path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                write_at(descriptor, content, 0)
            finally:
                os.close(descriptor)
        return self.staging

    async def _take_unsized(self, source: Source) -> None:
        """One object whose size shows when all of it has come: room is claimed as it grows."""
        self._transfer = None
        await self._clear()
        (item,) = source.objects
        self.progress.done = self.progress.total = 0
        where = beside(self.staging) if source.archive else self.staging
        await asyncio.to_thread(where.mkdir, exist_ok=True)
        path = where / item.path
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            stream = chunks(item, 0, sys.maxsize, self.storage.limits, self.progress)
            async with self.storage.connections, aclosing(stream):
                async for chunk in stream:
                    self._reserve(self.progress.done + len(chunk), lambda: self.progress.done)
                    await in_thread(partial(write_at, descriptor, chunk, self.progress.done))
                    self.progress.done += len(chunk)
            await in_thread(partial(os.fsync, descriptor))
        finally:
            os.close(descriptor)
        self.progress.total = self.progress.done
        await asyncio.to_thread(verify, source, where, self.spec.sha256)
        if source.archive:
            await self._unzip(path, self.progress.done)

    async def _stream_tar(self, source: Source) -> None:
        """Unpack as the bytes come: the archive itself is never on disk."""
        self._transfer = None
        await self._clear()
        (item,) = source.objects
        self.progress.done, self.progress.total = 0, item.size
        reader = _Reader(item, self.storage, self.progress, digest=self.spec.sha256 != "")
        try:
            stream = cast(IO[bytes], reader)
            await self._unpack(
                lambda unpacker: unpacker.tar(stream, source.archive),
                reader.tell,
                item.size,
                stop=reader.stop,
            )
        finally:
            await reader.close()
        if self.spec.sha256:
            check_digest(reader.sha256, self.spec.sha256)

    async def _unzip(self, path: Path, size: int) -> None:
        await self._clear()
        ours = size if path.is_relative_to(beside(self.staging)) else 0
        await self._unpack(lambda unpacker: unpacker.zip(path), lambda: size, size, ours)

    async def _take_local(self) -> None:
        await self._clear()
        root = await asyncio.to_thread(local.local_path, self.spec.storage_uri, self.storage.claims)
        items = await asyncio.to_thread(local.listing, root, self.spec.files)
        self.progress.done, self.progress.total = 0, sum(size for _, _, size in items)
        kind = archive_kind(root.name) if len(items) == 1 and items[0][0] == root else ""
        if kind == "zip":
            await self._unzip(root, items[0][2])
        elif kind:
            with root.open("rb") as stream:
                await self._unpack(lambda unpacker: unpacker.tar(stream, kind), stream.tell, items[0][2])
        else:
            self._reserve(self.progress.total, lambda: self.progress.done)
            stopped = threading.Event()
            await in_thread(
                lambda: local.take(items, self.staging, self.progress, stopped.is_set), stopped.set
            )
        if self.spec.sha256:
            objects = tuple(RemoteObject(None, "", path, size) for _, path, size in items)  # type: ignore[arg-type]
            where = root.parent if kind else self.staging
            await asyncio.to_thread(verify, Source(objects), where, self.spec.sha256)
        self.progress.done = self.progress.total

    async def _unpack(
        self,
        work: Callable[[Unpacker], None],
        consumed: Callable[[], int],
        archive: int,
        ours: int = 0,
        stop: Callable[[], None] = lambda: None,
    ) -> None:
        """Run an unpacker in a thread. `archive`: the archive's size in bytes; `ours`: bytes of it that
        lie on disk next to what it writes."""
        stopped = threading.Event()
        least = 0 if self.spec.files else archive  # an archive taken whole does not shrink
        unpacked = 0

        def claim(size: int) -> None:
            nonlocal unpacked
            self._reserve(ours + max(size, least), lambda: ours + unpacked)
            unpacked = size

        def cancel() -> None:
            stopped.set()
            stop()

        from puller.storage.archive import Unpacker

        claim(0)
        limits = self.storage.limits
        unpacker = Unpacker(self.staging, self.spec.files, limits, consumed, claim, stopped.is_set)
        try:
            await in_thread(lambda: work(unpacker), cancel)
        except (StorageError, OSError):
            await in_thread(lambda: remove_tree(self.staging))
            raise
        if not any(self.staging.iterdir()):
            raise StorageError(Reason.NOT_FOUND, "the archive holds no file that is wanted.")

    async def _clear(self) -> None:
        def clear() -> None:
            remove_tree(self.staging)
            self.staging.mkdir(parents=True)

        await in_thread(clear)

    def _empty(self) -> None:
        remove_tree(self.staging)
        remove_tree(beside(self.staging))

    def _reserve(self, size: int, written: Callable[[], int]) -> None:
        self.storage.budget.reserve(self.key, size, written)


def _explained(error: OSError) -> StorageError:
    if isinstance(error, TimeoutError) and error.errno is None:  # asyncio's: no system call failed
        return StorageError(Reason.STORAGE_TIMEOUT, "the storage did not answer in time.")
    reason = Reason.DISK_FULL if error.errno in _FULL else Reason.MODEL_DIR_UNUSABLE
    return StorageError(reason, f"the model directory cannot be written: {error.strerror or error}.")


class _Reader:
    """An object as a blocking stream for a thread, while the event loop keeps fetching ahead of it."""

    def __init__(self, item: RemoteObject, storage: Storage, progress: Progress, *, digest: bool) -> None:
        self._item = item
        self._storage = storage
        self._progress = progress
        self._sha256 = hashlib.sha256() if digest else None
        self._loop = asyncio.get_running_loop()
        self._ahead: asyncio.Queue[Bytes | bytes | Exception | None] = asyncio.Queue(maxsize=2)
        self._pump = self._loop.create_task(self._fetch())
        self._chunk = memoryview(b"")
        self._failed: Exception | None = None
        self._at_end = False

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes; fewer do not mean the end, none does. Called in the thread."""
        if self._failed is not None:
            raise self._failed
        if not self._chunk and not self._at_end:
            self._take(asyncio.run_coroutine_threadsafe(self._ahead.get(), self._loop).result())
        taken = self._chunk if size < 0 else self._chunk[:size]
        self._chunk = self._chunk[len(taken) :]
        return bytes(taken)

    def tell(self) -> int:
        """Bytes that were handed over by the store so far."""
        return self._progress.done

    def stop(self) -> None:
        """Make the next read fail. Called in the event loop."""
        self._pump.cancel()
        while not self._ahead.empty():
            self._ahead.get_nowait()
        self._ahead.put_nowait(StorageError(Reason.CANCELLED, "the model is no longer wanted."))

    async def close(self) -> None:
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)

    @property
    def sha256(self) -> str:
        """Of everything read."""
        return self._sha256.hexdigest() if self._sha256 else ""

    def _take(self, chunk: Bytes | bytes | Exception | None) -> None:
        if isinstance(chunk, Exception):
            self._failed = chunk
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
            async with self._storage.connections, aclosing(stream):
                async for chunk in stream:
                    await self._ahead.put(chunk)
        except StorageError as error:
            await self._ahead.put(error)
        else:
            await self._ahead.put(None)
