"""A cache of models on a volume that several pods share: the first pod downloads, the others copy from it.

Law: an entry gets its name by one rename, when it is complete, so any number of pullers may write the same
entry at once. The lock only saves work. Its holder renews it. A waiter takes it over if it was not renewed
for a minute by the waiter's own clock, so neither a dead holder nor a clock that jumps blocks anybody. A
cache that cannot be used is ignored: the model is downloaded.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from puller.log import logger
from puller.spec import ModelSpec, without_secrets
from puller.storage import local
from puller.storage.base import Progress, StorageError
from puller.store import flush_tree, remove_tree, sync, tree_size, write_file

STALE = 60.0
"""Seconds after which a lock that is not renewed is taken over."""
RENEWAL = 10.0
_MARKER = "entry.json"
_FILES = "files"
_WORK = ".work"
_ABANDONED = 24 * 3600.0
"""Seconds after which an unfinished entry is removed."""


@dataclass
class Cache:
    """Entries at `<root>/<digest of a spec>`. All calls block. `limit`: bytes of all entries; 0: no limit."""

    root: Path
    limit: int = 0
    clock: Callable[[], float] = time.monotonic
    _seen: dict[str, tuple[str, int, float]] = field(default_factory=dict)
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
            said = json.loads((entry / _MARKER).read_bytes())
            items = local.listing(entry / _FILES, ())
            size = said["bytes"]
            whole = sum(size for _, _, size in items) == size and len(items) == said["files"]
        except FileNotFoundError:
            return False
        except (OSError, StorageError, ValueError, LookupError, TypeError) as error:
            logger.warning("cache entry not usable", model=spec.name, error=str(error))
            return False
        if not whole:
            logger.warning("cache entry not usable", model=spec.name, error="files are missing, or others")
            return False
        progress.done, progress.total = 0, size
        claim(size)
        try:
            into.mkdir(parents=True, exist_ok=True)
            local.take(items, into, progress, stopped)
            with suppress(OSError):
                os.utime(entry)
        except (OSError, StorageError) as error:
            logger.warning("cache entry not copied", model=spec.name, error=str(error))
            return False
        return not stopped()

    def put(self, spec: ModelSpec, tree: Path, stopped: Callable[[], bool]) -> bool:
        """Copy a complete tree into the entry of this spec; False if that fails."""
        scratch = self.root / _WORK / f"{spec.digest}.{secrets.token_hex(8)}"
        try:
            items = local.listing(tree, ())
            size = sum(size for _, _, size in items)
            (self.root / _WORK).mkdir(parents=True, exist_ok=True)
            self._make_room(size)
            (scratch / _FILES).mkdir(parents=True)
            local.take(items, scratch / _FILES, Progress(), stopped)
            if stopped():
                return False
            flush_tree(scratch)
            marker = {"bytes": size, "files": len(items), "uri": without_secrets(spec.storage_uri)}
            write_file(scratch / _MARKER, json.dumps(marker).encode())
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
        path = self.root / _WORK / f"{spec.digest}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        mine = secrets.token_hex(16)
        if _create(path, mine):
            return Lock(path, mine)
        try:
            said, changed = path.read_text(), path.stat().st_mtime_ns
        except FileNotFoundError:
            return None  # released a moment ago: the next attempt finds the entry, or no lock
        text, at, since = self._seen.get(spec.digest, ("", 0, 0.0))
        if (text, at) != (said, changed):
            self._seen[spec.digest] = said, changed, self.clock()
            return None
        if self.clock() - since < STALE:
            return None
        del self._seen[spec.digest]
        grave = path.with_name(f"{path.name}.{mine}")
        with suppress(FileNotFoundError):
            path.rename(grave)  # of several waiters, one succeeds
            grave.unlink()
        return Lock(path, mine) if _create(path, mine) else None

    def _install(self, scratch: Path, entry: Path) -> None:
        try:
            scratch.rename(entry)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            # Another puller was first, or the entry is not usable and this one replaces it.
            grave = self.root / _WORK / f"old.{secrets.token_hex(8)}"
            entry.rename(grave)
            scratch.rename(entry)
            with suppress(OSError):
                remove_tree(grave)

    def _make_room(self, size: int) -> None:
        """Remove abandoned copies, and the least recently used entries until `size` bytes fit."""
        now = time.time()
        for path in (self.root / _WORK).iterdir():
            with suppress(FileNotFoundError):
                if now - path.lstat().st_mtime > _ABANDONED:
                    remove_tree(path)
        if not self.limit:
            return
        if size > self.limit:
            raise OSError(errno.EFBIG, f"it is larger than the cache may be ({self.limit} bytes)")
        entries = sorted(
            (path.stat().st_mtime, path, tree_size(path))
            for path in self.root.iterdir()
            if path.is_dir() and not path.name.startswith(".")
        )
        held = sum(each for _, _, each in entries)
        for _, path, each in entries:
            if held + size <= self.limit:
                return
            grave = self.root / _WORK / f"old.{secrets.token_hex(8)}"
            with suppress(FileNotFoundError):
                path.rename(grave)
                remove_tree(grave)
            held -= each


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock that is held; `renew` it every RENEWAL seconds."""

    path: Path
    text: str

    def renew(self) -> None:
        with suppress(OSError):
            if self._mine():
                os.utime(self.path)

    def give_back(self) -> None:
        with suppress(OSError):
            if self._mine():
                self.path.unlink()

    def _mine(self) -> bool:
        return self.path.read_text() == self.text


def _create(path: Path, text: str) -> bool:
    """A file with this content, unless there is one. A link makes name and content appear together."""
    scratch = path.with_name(f"{path.name}.{text}")
    scratch.write_text(text)
    try:
        os.link(scratch, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        try:
            with path.open("x") as file:
                file.write(text)
        except FileExistsError:
            return False
    finally:
        scratch.unlink()
    return True
