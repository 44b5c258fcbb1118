"""A cache of models on a volume that several pods share: the first pod downloads, the others copy from it.

Law: an entry gets its name by one rename, when it is complete, so any number of pullers may write the same
entry at once. The lock only saves work. Its holder renews it. A waiter takes it over if it was not renewed
for `STALE` seconds by the waiter's own clock, so neither a dead holder nor a clock that jumps blocks anybody.
A cache that cannot be used is ignored: the model is downloaded. Whatever lies on the volume, no thread waits
for it and nothing but our own entries is removed.

Clients of a network file system remember names and times: NFS for up to 60 s (`acdirmax`, `acregmax`). So
`STALE` is longer, times are read from an open file, and locks are in the directory of the entries: a client
that changed a directory asks for its names again.
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

from puller.log import logger
from puller.spec import ModelSpec, without_secrets
from puller.storage import local
from puller.storage.base import Progress, StorageError
from puller.store import flush_tree, read_regular, remove_tree, sync, tree_size, write_file

STALE = 120.0
"""Seconds after which a lock that is not renewed is taken over."""
RENEWAL = 10.0
_MARKER = "entry.json"
_FILES = "files"
_WORK = ".work"
_ABANDONED = 24 * 3600.0
"""Seconds after which an unfinished entry is removed."""
_ENTRY = re.compile(r"[0-9a-f]{64}")
_MAX_MARKER = 65536
_MAX_LOCK = 1024

_Items = list[tuple[Path, str, int]]
"""Files, their paths below the model's directory, and their bytes."""


@dataclass
class Cache:
    """Entries at `<root>/<digest of a spec>`. All calls block. `limit`: bytes of all entries; 0: no limit."""

    root: Path
    limit: int = 0
    clock: Callable[[], float] = time.monotonic
    _seen: dict[str, tuple[bytes, int, float]] = field(default_factory=dict)
    """Locks of others: their text, their time on disk, and since when both were so."""

    def take(
        self,
        spec: ModelSpec,
        into: Path,
        progress: Progress,
        stopped: Callable[[], bool],
        claim: Callable[[int], None] = lambda size: None,
    ) -> bool:
        """Link or copy an entry into a directory; False if there is no complete one. `claim` gets the bytes
        before, and may raise StorageError."""
        entry = self.root / spec.digest
        try:
            items, size = _complete(entry)
        except FileNotFoundError:
            return False
        except (OSError, StorageError, ValueError) as error:
            logger.warning("cache entry not usable", model=spec.name, error=str(error))
            return False
        progress.done, progress.total = 0, size
        claim(size)
        try:
            into.mkdir(parents=True, exist_ok=True)
            local.take(items, into, progress, stopped)
            with suppress(OSError):
                os.utime(entry)
            self._seen.pop(spec.digest, None)
        except (OSError, StorageError) as error:
            logger.warning("cache entry not copied", model=spec.name, error=str(error))
            return False
        return not stopped()

    def put(self, spec: ModelSpec, tree: Path, stopped: Callable[[], bool]) -> bool:
        """Copy a complete tree into the entry of this spec; False if that fails."""
        scratch = self._work / f"{spec.digest}.{secrets.token_hex(8)}"
        try:
            items = local.listing(tree, ())
            size = sum(size for _, _, size in items)
            self._make_work()
            self._make_room(size, spec.digest)
            (scratch / _FILES).mkdir(parents=True)
            local.take(items, scratch / _FILES, Progress(), stopped)
            if stopped():
                return False
            flush_tree(scratch)
            marker = {"bytes": size, "files": len(items), "uri": without_secrets(spec.storage_uri)}
            write_file(scratch / _MARKER, orjson.dumps(marker))
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
        """The right to download; None while another puller has it. Raises OSError if locks are impossible."""
        path = self.root / f".{spec.digest}.lock"
        self._make_work()
        mine = secrets.token_hex(16).encode()
        grave = self._work / f"{spec.digest}.{secrets.token_hex(8)}.lock"
        if _create(path, mine, grave):
            self._seen.pop(spec.digest, None)
            return Lock(path, mine)
        try:
            now, changed = _read_lock(path)
        except FileNotFoundError:
            return None  # released a moment ago: the next attempt finds the entry, or no lock
        before, at, since = self._seen.get(spec.digest, (b"", 0, 0.0))
        if (before, at) != (now, changed):
            self._seen[spec.digest] = now, changed, self.clock()
            return None
        if self.clock() - since < STALE:
            return None
        del self._seen[spec.digest]
        with suppress(FileNotFoundError):
            path.rename(grave)
            if _read_lock(grave)[0] != now:  # another waiter was quicker, and this is its lock
                grave.rename(path)
                return None
            grave.unlink()
        return Lock(path, mine) if _create(path, mine, grave) else None

    @property
    def _work(self) -> Path:
        return self.root / _WORK

    def _make_work(self) -> None:
        """The directory for unfinished entries, with the permissions of the volume: pods may run as several
        users with one group."""
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
            self._bury(entry)
            scratch.rename(entry)

    def _make_room(self, size: int, digest: str) -> None:
        """Remove abandoned copies, and the least recently used entries until `size` bytes fit. Raises
        OSError if they do not."""
        now = time.time()
        for path in self._work.iterdir():
            with suppress(OSError):  # another puller may remove it, too
                # An earlier holder of this lock died, or lost it: nobody needs its copy.
                if path.name.startswith(digest) or now - path.lstat().st_mtime > _ABANDONED:
                    remove_tree(path)
        if not self.limit:
            return
        held = tree_size(self._work)
        entries: list[tuple[float, Path, int]] = []
        for path in self.root.iterdir():
            if _ENTRY.fullmatch(path.name) and not path.is_symlink():
                with suppress(OSError):
                    entries.append((path.stat().st_mtime, path, tree_size(path)))
        held += sum(each for _, _, each in entries)
        for _, path, each in sorted(entries) if size <= self.limit else ():
            if held + size <= self.limit:
                break
            with suppress(OSError):  # of another user, perhaps
                self._bury(path)
                held -= each
        if held + size > self.limit:
            raise OSError(errno.EFBIG, f"it does not fit into the {self.limit} bytes that the cache may take")

    def _bury(self, entry: Path) -> None:
        """Take an entry out of the cache at once, and delete it. Raises OSError if it stays."""
        grave = self._work / f"old.{secrets.token_hex(8)}"
        entry.rename(grave)
        with suppress(OSError):
            remove_tree(grave)


def _complete(entry: Path) -> tuple[_Items, int]:
    """The files of an entry, and their bytes. Raises FileNotFoundError if there is none; OSError,
    StorageError or ValueError if it is not usable."""
    said = orjson.loads(read_regular(entry / _MARKER, _MAX_MARKER)[0])
    if entry.is_symlink() or (entry / _FILES).is_symlink():
        raise ValueError("it is a link")
    items = local.listing(entry / _FILES, ())
    size = sum(size for _, _, size in items)
    if not isinstance(said, dict) or (said.get("bytes"), said.get("files")) != (size, len(items)):
        raise ValueError("files are missing, or there are others")
    return items, size


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock that is held; `renew` it every RENEWAL seconds."""

    path: Path
    text: bytes

    def renew(self) -> None:
        with suppress(OSError):
            if self._mine():
                os.utime(self.path)

    def give_back(self) -> None:
        with suppress(OSError):
            if self._mine():
                self.path.unlink()

    def _mine(self) -> bool:
        return _read_lock(self.path)[0] == self.text


def _read_lock(path: Path) -> tuple[bytes, int]:
    """A lock's text, and the time of its last renewal."""
    text, found = read_regular(path, _MAX_LOCK)
    return text, found.st_mtime_ns


def _create(path: Path, text: bytes, scratch: Path) -> bool:
    """A file with this content, unless there is one. A link makes name and content appear together."""
    try:
        scratch.write_bytes(text)
        try:
            os.link(scratch, path)
        except FileExistsError:
            # An NFS server whose answer was lost has made the link already when it is asked again.
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
