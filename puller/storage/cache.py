"""A cache of models on a volume that several pods share: the first pod downloads, the others copy from it.

Law: an entry gets its name by one rename, when it is complete, so any number of pullers may write the same
entry at once. The lock only saves work. Its holder renews it. A waiter takes it over if it was not renewed
for `STALE` seconds by the waiter's own clock, so a dead holder or a wrong clock blocks nobody. If the cache
cannot be used, the model is downloaded. No thread blocks on other files of the volume, such as pipes, and
only entries of the cache are removed.

Clients of a network file system cache names and times: NFS for up to 60 s (`acdirmax`, `acregmax`). So
`STALE` is longer, times are read from an open file, and locks are in the directory of the entries: a client
that changed a directory reads its names again.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from puller.files import flush_tree, read_regular, remove_tree, sync, tree_size, write_file
from puller.log import logger
from puller.model_config import ModelSpec, without_secrets
from puller.storage import local
from puller.storage.base import FetchProgress, StorageError

STALE = 120.0
"""Seconds without a renewal after which a lock is taken over."""
RENEWAL = 10.0
_ENTRY_FILE = "entry.json"
_FILES = "files"
_WORK = ".work"
_ABANDONED = 24 * 3600.0
"""Seconds after which an unfinished entry is removed."""
_ENTRY = re.compile(r"[0-9a-f]{64}")
_MAX_ENTRY_FILE = 65536
_MAX_LOCK = 1024

_Items = list[tuple[Path, str, int]]
"""Files, their paths below the model's directory, and their sizes."""


@dataclass
class SharedCache:
    """Entries at `<root>/<digest of a spec>`. All calls block. `limit`: bytes of all entries (0: no
    limit)."""

    root: Path
    limit: int = 0
    clock: Callable[[], float] = time.monotonic
    _waiting: dict[str, tuple[bytes, int, float]] = field(default_factory=dict)
    """Locks of others: their text, their time on disk, and when this puller first saw both."""

    def take(
        self,
        spec: ModelSpec,
        into: Path,
        progress: FetchProgress,
        stopped: Callable[[], bool],
        reserve: Callable[[int], None],
    ) -> bool:
        """Link or copy an entry into a directory; False if there is no complete one. `reserve` gets the size
        first, and may raise StorageError."""
        entry = self.root / spec.digest
        try:
            items, size = _complete(entry)
        except FileNotFoundError:
            return False
        except (OSError, StorageError, ValueError) as error:
            logger.warning("cache entry not usable", model=spec.name, error=str(error))
            return False
        progress.done, progress.total = 0, size
        reserve(size)
        try:
            into.mkdir(parents=True, exist_ok=True)
            local.take(items, into, progress, stopped)
            with suppress(OSError):
                os.utime(entry)
            self._waiting.pop(spec.digest, None)
        except (OSError, StorageError) as error:
            logger.warning("cache entry not copied", model=spec.name, error=str(error))
            return False
        return not stopped()

    def drop(self, spec: ModelSpec) -> None:
        """Remove the entry of a spec, as far as possible."""
        with suppress(OSError):
            self._make_work()
            self._remove(self.root / spec.digest)

    def put(self, spec: ModelSpec, tree: Path, stopped: Callable[[], bool]) -> bool:
        """Copy a complete tree into the entry of this spec; False if that fails."""
        scratch = self._work / f"{spec.digest}.{secrets.token_hex(8)}"
        try:
            items = local.listing(tree, ())
            size = sum(size for _, _, size in items)
            self._make_work()
            self._make_room(size, spec.digest)
            (scratch / _FILES).mkdir(parents=True)
            local.take(items, scratch / _FILES, FetchProgress(), stopped)
            if stopped():
                return False
            flush_tree(scratch)
            marker = {"bytes": size, "files": len(items), "uri": without_secrets(spec.storage_uri)}
            write_file(scratch / _ENTRY_FILE, orjson.dumps(marker))
            sync(scratch)
            self._install(scratch, self.root / spec.digest)
        except (OSError, StorageError) as error:
            logger.warning("model not cached", model=spec.name, error=str(error))
            return False
        finally:
            with suppress(OSError):
                remove_tree(scratch)
        return True

    def lock(self, spec: ModelSpec) -> Lock | None:
        """The lock for a download; None while another puller has it. Raises OSError if locks are
        impossible."""
        path = self.root / f".{spec.digest}.lock"
        self._make_work()
        text = secrets.token_hex(16).encode()
        scratch = self._work / f"{spec.digest}.{secrets.token_hex(8)}.lock"
        if _create(path, text, scratch):
            self._waiting.pop(spec.digest, None)
            return Lock(path, text)
        try:
            other = _read_lock(path)
        except FileNotFoundError:
            return None  # released a moment ago: the next attempt finds the entry, or no lock
        *seen, since = self._waiting.get(spec.digest, (b"", 0, 0.0))
        if other != tuple(seen):
            self._waiting[spec.digest] = *other, self.clock()
            return None
        if self.clock() - since < STALE:
            return None
        del self._waiting[spec.digest]
        with suppress(FileNotFoundError):
            path.rename(scratch)
            if _read_lock(scratch)[0] != other[0]:  # another waiter was faster, and this is its lock
                scratch.rename(path)
                return None
            scratch.unlink()
        return Lock(path, text) if _create(path, text, scratch) else None

    @property
    def _work(self) -> Path:
        return self.root / _WORK

    def _make_work(self) -> None:
        """The directory for unfinished entries, with the permissions of the volume: pods may run as several
        users with one group."""
        if self._work.is_symlink():
            raise OSError(errno.ELOOP, "a link, which may lead to files of others", str(self._work))
        if not self._work.is_dir():
            self._work.mkdir(parents=True, exist_ok=True)
            with suppress(OSError):
                self._work.chmod(stat.S_IMODE(self.root.stat().st_mode))

    def _install(self, scratch: Path, entry: Path) -> None:
        try:
            scratch.rename(entry)
        except OSError:
            if not os.path.lexists(entry):
                raise
            with suppress(OSError, StorageError, ValueError):
                _complete(entry)
                return  # another puller was first, and others may be copying from it
            self._remove(entry)
            scratch.rename(entry)

    def _make_room(self, size: int, digest: str) -> None:
        """Remove abandoned copies, and the least recently used entries until `size` bytes fit. Raises
        OSError if they do not."""
        now = time.time()
        for path in self._work.iterdir():
            with suppress(OSError):  # another puller may remove it, too
                # A copy of this entry is from an earlier holder of the lock, which died or lost it.
                if path.name.startswith(digest) or now - path.lstat().st_mtime > _ABANDONED:
                    remove_tree(path)
        if not self.limit:
            return
        used = tree_size(self._work)
        entries: list[tuple[float, Path, int]] = []
        for path in self.root.iterdir():
            if _ENTRY.fullmatch(path.name) and not path.is_symlink():
                with suppress(OSError):
                    entries.append((path.stat().st_mtime, path, tree_size(path)))
        used += sum(each for _, _, each in entries)
        for _, path, each in sorted(entries) if size <= self.limit else ():
            if used + size <= self.limit:
                break
            with suppress(OSError):  # perhaps of another user
                self._remove(path)
                used -= each
        if used + size > self.limit:
            raise OSError(errno.EFBIG, f"it does not fit into --cache-size, {self.limit} bytes")

    def _remove(self, entry: Path) -> None:
        """Rename an entry, then delete it. Raises OSError if it cannot be renamed."""
        trash = self._work / f"old.{secrets.token_hex(8)}"
        entry.rename(trash)
        with suppress(OSError):
            remove_tree(trash)


def _complete(entry: Path) -> tuple[_Items, int]:
    """The files of an entry, and their total size. Raises FileNotFoundError if there is none; OSError,
    StorageError or ValueError if it is not usable."""
    declared = orjson.loads(read_regular(entry / _ENTRY_FILE, _MAX_ENTRY_FILE)[0])
    if entry.is_symlink() or (entry / _FILES).is_symlink():
        raise ValueError("it is a link")
    items = local.listing(entry / _FILES, ())
    size = sum(size for _, _, size in items)
    if not isinstance(declared, dict) or (declared.get("bytes"), declared.get("files")) != (size, len(items)):
        raise ValueError("its files are not those that it lists")
    return items, size


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock of this puller; `renew` it every RENEWAL seconds."""

    path: Path
    text: bytes

    def renew(self) -> None:
        with suppress(OSError):
            if self._owned():
                os.utime(self.path)

    def release(self) -> None:
        with suppress(OSError):
            if self._owned():
                self.path.unlink()

    def _owned(self) -> bool:
        return _read_lock(self.path)[0] == self.text


def _read_lock(path: Path) -> tuple[bytes, int]:
    """A lock's text, and the time of its last renewal."""
    text, found = read_regular(path, _MAX_LOCK)
    return text, found.st_mtime_ns


def _create(path: Path, text: bytes, scratch: Path) -> bool:
    """Create a file with this content; False if it exists. With a hard link, name and content appear at
    once."""
    try:
        scratch.write_bytes(text)
        try:
            os.link(scratch, path)
        except FileExistsError:
            # If the response of an NFS server was lost, its client repeats the call after the link was made.
            return scratch.stat().st_nlink == 2
        except OSError:  # a file system without hard links
            try:
                with path.open("xb") as file:
                    file.write(text)
            except FileExistsError:
                return False
    finally:
        scratch.unlink(missing_ok=True)
    return True
