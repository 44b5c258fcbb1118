"""Models on disk: `<root>/<name>/` is complete and marked, or it is not there.

Law: a tree gets its final name by one rename, after its bytes and its marker are on stable storage.
Everything unfinished lives below `<root>/.puller/`, on the same file system, and is swept at the next
start. All calls block; the reconciler runs them in threads, never two at once for one model.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from puller.log import logger
from puller.spec import ModelSpec, RefusedError, from_json, valid_name

WORK = ".puller"
MARKER = "SUCCESS."
LOADED = ".loaded"
LOADING = ".loading"

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_MAX_MARKER = 1 << 20
_BATCH = 1 << 16
"""Entries of a directory that are held in memory at a time."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A complete model on disk: the spec in its marker, its size in bytes, and whether the model server
    took exactly this tree (so that a restart of the puller need not load it again), or was loading it
    when the puller ended."""

    spec: ModelSpec
    size: int
    loaded: bool
    loading: bool = False


class StoreBusyError(RuntimeError):
    """Another puller holds this model directory."""


def reserved(path: str) -> bool:
    """Whether a file of a model (relative path) has the name of one of our notes."""
    return path.startswith(MARKER) or path in (LOADED, LOADING)


class ModelStore:
    """The model directory. `open()` first; it may be tried again after an OSError."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._work = root / WORK
        self._lock: int | None = None

    def open(self) -> None:
        """Create missing directories, take the lock, delete unfinished trees of an earlier run.

        Raises OSError for a directory that cannot be used, StoreBusyError while another puller has it.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        self._work.mkdir(exist_ok=True)
        if self._lock is None:
            self._lock = _locked(self._work / "lock")
        self.sweep()

    def sweep(self) -> None:
        """Remove everything unfinished. No step may be in flight. No effect before `open`.

        One tree that cannot be removed is reported, and keeps no other. Raises OSError where the directory
        itself cannot be used.
        """
        if self._lock is not None:
            for part in ("new", "old"):
                directory = self._work / part
                directory.mkdir(exist_ok=True)
                with os.scandir(directory) as entries:
                    leftovers = [entry.name for entry in entries]
                for name in leftovers:
                    _swept(directory / name)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def audit(self) -> dict[str, Stored]:
        """The complete models, by name. Directories under a model's name that are not complete are
        removed; all other entries (such as `lost+found`) stay."""
        complete: dict[str, Stored] = {}
        with os.scandir(self.root) as entries:
            directories = [
                entry.name
                for entry in entries
                if valid_name(entry.name) and (entry.is_symlink() or entry.is_dir(follow_symlinks=False))
            ]
        for name in directories:
            stored = self.read(name)
            if stored is None:
                self._remove_incomplete(name)
            else:
                complete[name] = stored
        return complete

    def _remove_incomplete(self, name: str) -> None:
        """A directory that cannot be removed is reported, and keeps no other model from being served."""
        try:
            self.remove(name)
        except OSError as error:
            if error.errno == errno.EROFS:
                raise
            logger.warning("directory not removed", model=name, error=str(error))

    def read(self, name: str) -> Stored | None:
        """The complete model of that name, or None."""
        directory = self.root / name
        if directory.is_symlink():
            return None
        try:
            with os.scandir(directory) as entries:
                names = [entry.name for entry in entries]
        except OSError:
            return None
        marked = [
            found
            for marker in names
            if marker.startswith(MARKER)
            if (found := _marker(name, directory / marker))
        ]
        if len(marked) != 1:
            return None
        spec, size = marked[0]
        size = tree_size(directory) if size is None else size
        return Stored(spec, size, LOADED in names, LOADING in names)

    def staging(self, name: str) -> Path:
        """Where to build a model: a free name on the same file system. An archive may lie next to it."""
        return self._work / "new" / name

    def discard(self, name: str) -> None:
        """Delete the staged tree."""
        staging = self.staging(name)
        remove_tree(staging)
        remove_tree(beside(staging))

    def renew(self, name: str) -> None:
        """The same, and create the directory around it again if it was removed."""
        self.discard(name)
        self.staging(name).parent.mkdir(parents=True, exist_ok=True)

    def install(self, spec: ModelSpec, tree: Path) -> Stored:
        """Make a staged tree the model of that name, in one step, replacing the one that is there."""
        size = flush_tree(tree)
        write_file(tree / f"{MARKER}{spec.digest}", json.dumps(spec.to_json() | {"bytes": size}).encode())
        sync(tree)
        final = self.root / spec.name
        if os.path.lexists(final):
            replaced = self._grave()
            _replace(tree, final, replaced)
            sync(self.root)  # before the old tree goes
            _bury(replaced)
        else:
            tree.rename(final)  # if a power cut undoes the rename, the model is fetched again
        return Stored(spec, size, loaded=False)

    def remove(self, name: str) -> None:
        """Delete a model: gone under its name at once, its bytes a moment later."""
        final = self.root / name
        if os.path.lexists(final):
            grave = self._grave()
            final.rename(grave)
            sync(self.root)
            _bury(grave)

    def note_loaded(self, name: str) -> None:
        """Keep in mind, across restarts, that the model server took this tree."""
        (self.root / name / LOADING).rename(self.root / name / LOADED)

    def note_loading(self, name: str, loading: bool) -> None:
        """Keep in mind, across restarts, that a load of this tree is (or is no longer) under way."""
        note = self.root / name / LOADING
        if loading:
            os.close(os.open(note, os.O_WRONLY | os.O_CREAT, 0o644))
        else:
            note.unlink(missing_ok=True)

    def note_ready(self, pod: str) -> None:
        """Note, for a puller that restarts in the same pod, that all models were loaded."""
        write_atomically(self._work / "ready", pod.encode(), durable=False)

    def was_ready(self, pod: str) -> bool:
        """Whether that was noted for this pod."""
        try:
            with (self._work / "ready").open("rb") as file:
                return pod != "" and file.read(1024) == pod.encode()
        except OSError:
            return False

    def _grave(self) -> Path:
        """A free name in a new directory, to move a doomed tree to."""
        graves = self._work / "old"
        graves.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=graves)) / "tree"


def beside(staging: Path) -> Path:
    """A directory for what a staged model is made from; no model has its name."""
    return staging.with_name(f"{staging.name}.archive")


def tree_size(directory: Path) -> int:
    """Bytes in the regular files below."""
    return sum(_sizes(directory))


def flush_tree(directory: Path) -> int:
    """Flush every file and directory below to stable storage, but not this one; the bytes in the files."""
    size = 0
    waiting = [os.fspath(directory)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    continue
                if entry.is_dir():
                    waiting.append(entry.path)
                else:
                    size += entry.stat().st_size
                sync(entry.path)
    return size


def sync(path: str | Path) -> None:
    """Flush one file or directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, content: bytes) -> None:
    """Write a whole file, and flush it to stable storage."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_regular(path: Path, most: int) -> tuple[bytes, os.stat_result]:
    """The first `most` bytes of a file. No link is followed and no pipe waited for. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123  (a descriptor, not a path)
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read(most), found


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file's content; a reader sees the old or the new, never a part."""
    scratch = path.with_name(f".{path.name}.new")
    with scratch.open("wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    scratch.replace(path)


def _swept(leftover: Path) -> None:
    try:
        remove_tree(leftover)
    except Exception as error:  # no error here may keep the models from being served
        logger.warning(
            "leftover not removed", directory=leftover.name, error=f"{type(error).__name__}: {error}"
        )


def _replace(tree: Path, final: Path, replaced: Path) -> None:
    """`tree` becomes `final`, the old `final` becomes `replaced`: atomically if the file system can,
    else by two renames, between which the model is absent (but never partial)."""
    try:
        _exchange(tree, final)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM):
            raise
        final.rename(replaced)
        tree.rename(final)
    else:
        tree.rename(replaced)


def _bury(grave: Path) -> None:
    """Free the space of a doomed tree; what cannot be deleted now is swept at the next start."""
    with suppress(OSError):
        remove_tree(grave.parent)


def _sizes(directory: Path) -> Iterator[int]:
    """The sizes of the files below. An entry that cannot be read, or whose path is too long, is left out; the
    others of its directory are not."""
    waiting = [os.fspath(directory)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        yield entry.stat(follow_symlinks=False).st_size


def _marker(name: str, path: Path) -> tuple[ModelSpec, int | None] | None:
    """(spec, size if we wrote it) of a sound marker, ours or KServe's; None for an empty or broken one."""
    try:
        raw = json.loads(read_regular(path, _MAX_MARKER)[0])
        size = raw.get("bytes") if isinstance(raw, dict) else None
        return from_json(name, raw), size if isinstance(size, int) and size >= 0 else None
    except (OSError, ValueError, RecursionError, RefusedError):
        return None


def _exchange(one: Path, other: Path) -> None:
    import ctypes  # only an update needs it

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, "renameat2 is not available")
    done = libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if done != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one))


def _locked(path: Path) -> int:
    """An open, locked file. The kernel drops the lock with the process, however that ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StoreBusyError(f"another puller is using {path.parent.parent}") from None
    except OSError:
        pass  # a file system without locks: kubelet starts one puller at a time anyway
    return descriptor


def remove_tree(path: Path) -> None:
    """Delete a file, a link or a tree of any depth; directories that an archive made unwritable included.

    No recursion, and no path below the tree: each directory is emptied by moving those in it up to the top,
    where their turn comes. Two descriptors are open at a time, one batch of names is in memory.
    """
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
        top = _opened(os.fspath(path))
    except FileNotFoundError:
        return
    doomed = _Doomed()
    try:
        _empty(top, top, doomed)
        while doomed.names:
            name = doomed.names.pop()
            directory = _opened(name, top)
            try:
                _empty(directory, top, doomed)
            finally:
                os.close(directory)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    path.rmdir()


@dataclass(slots=True)
class _Doomed:
    """Directories at the top of a tree that is being deleted, under names that are like no other."""

    prefix: str = field(default_factory=lambda: f".doomed-{secrets.token_hex(8)}-")
    names: list[str] = field(default_factory=list)
    count: int = 0

    def add(self) -> str:
        self.count += 1
        self.names.append(f"{self.prefix}{self.count}")
        return self.names[-1]


def _empty(directory: int, top: int, doomed: _Doomed) -> None:
    """Unlink the files of an open directory; move its directories to the top."""
    while True:
        with os.scandir(directory) as entries:
            others = (entry for entry in entries if not entry.name.startswith(doomed.prefix))
            batch = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(others, _BATCH)]
        if not batch:
            return
        for name, is_directory in batch:
            if not is_directory:
                os.unlink(name, dir_fd=directory)
                continue
            with suppress(PermissionError):
                os.chmod(name, 0o700, dir_fd=directory)  # it cannot be moved unless it can be written
            os.rename(name, doomed.add(), src_dir_fd=directory, dst_dir_fd=top)


def _opened(name: str, parent: int | None = None) -> int:
    """A descriptor of a directory that may be emptied."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(PermissionError):
        os.chmod(name, 0o700, dir_fd=parent)
    return os.open(name, flags, dir_fd=parent)
