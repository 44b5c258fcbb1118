"""Models on disk: `<root>/<name>/` is complete and has a marker, or it does not exist.

Law: a tree gets its final name by one rename, after its bytes and its marker are on stable storage.
Unfinished trees are below `<root>/.puller/`, on the same file system, and the next start deletes them. All
calls block; the reconciler runs them in threads, never two at once for one model.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from puller.files import (
    flush_tree,
    read_regular,
    remove_tree,
    sync,
    tree_size,
    write_atomically,
    write_file,
)
from puller.log import logger
from puller.model_config import ModelSpec, RefusedError, from_json, valid_name

WORK = ".puller"
VERSIONS_NEW = "versions"
"""Below WORK: unfinished versions of adapters."""
MARKER = "SUCCESS."
LOADED = ".loaded"
LOADING = ".loading"

_UNFINISHED = ("new", "archives", VERSIONS_NEW, "old")
_MAX_MARKER = 1 << 20


@dataclass(frozen=True, slots=True)
class Stored:
    """A complete model on disk. `spec`: from its marker. `size`: in bytes. `loaded`: the model server has
    loaded exactly this tree, so a restarted puller need not load it again. `loading`: a load began."""

    spec: ModelSpec
    size: int
    loaded: bool
    loading: bool = False


class StoreBusyError(RuntimeError):
    """Another puller uses this model directory."""


def is_reserved(path: str) -> bool:
    """Whether a relative path is at or below that of a marker or record of the puller: models have no such
    files or directories."""
    return path.startswith(MARKER) or path.partition("/")[0] in (LOADED, LOADING)


class ModelStore:
    """The model directory. `open()` first; it may be tried again after an OSError."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._work = root / WORK
        self._lock: int | None = None

    def open(self) -> None:
        """Create missing directories, take the lock, delete unfinished trees of an earlier run.

        Raises OSError for a directory that cannot be used, StoreBusyError while another puller uses it.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        _make_own(self._work)
        if self._lock is None:
            self._lock = _lock_file(self._work / "lock")
        self.sweep()

    def sweep(self) -> None:
        """Delete all unfinished trees. No step may be in flight. No effect before `open`.

        A tree that cannot be deleted is logged; the others are still deleted. Raises OSError if the
        directory itself cannot be used.
        """
        if self._lock is not None:
            for part in _UNFINISHED:
                directory = self._work / part
                _make_own(directory)
                with os.scandir(directory) as entries:
                    leftovers = [entry.name for entry in entries]
                for name in leftovers:
                    _remove_leftover(directory / name)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def audit(self) -> dict[str, Stored]:
        """The complete models, by name. Incomplete directories with a model's name are removed; all other
        entries (such as `lost+found`) stay."""
        found = {name: self.read(name) for name in self._directories()}
        for name in (name for name, stored in found.items() if stored is None):
            try:
                self.remove(name)
            except OSError as error:
                if error.errno == errno.EROFS:
                    raise
                logger.warning("directory not removed", model=name, error=str(error))
        return {name: stored for name, stored in found.items() if stored is not None}

    def complete(self) -> dict[str, Stored]:
        """The complete models, by name, of a directory that may be read-only; none if it cannot be read."""
        try:
            found = {name: self.read(name) for name in self._directories()}
        except OSError:
            return {}
        return {name: stored for name, stored in found.items() if stored is not None}

    def _directories(self) -> list[str]:
        with os.scandir(self.root) as entries:
            return [
                entry.name
                for entry in entries
                if valid_name(entry.name) and (entry.is_symlink() or entry.is_dir(follow_symlinks=False))
            ]

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
            if (found := _read_marker(name, directory / marker))
        ]
        if len(marked) != 1:
            return None
        spec, size = marked[0]
        size = tree_size(directory) if size is None else size
        return Stored(spec, size, LOADED in names, LOADING in names)

    def staging(self, name: str) -> Path:
        """Where to build a model, on the same file system."""
        return self._work / "new" / name

    def discard(self, name: str) -> None:
        """Delete the staged tree."""
        staging = self.staging(name)
        remove_tree(staging)
        remove_tree(archive_dir(staging))

    def prepare_staging(self, name: str) -> None:
        """Delete the staged tree, and create the parent directory if it was removed."""
        self.discard(name)
        self.staging(name).parent.mkdir(parents=True, exist_ok=True)

    def install(self, spec: ModelSpec, tree: Path) -> Stored:
        """Make a staged tree the model of that name, in one step; it replaces the present one."""
        size = flush_tree(tree)
        write_file(tree / f"{MARKER}{spec.digest}", json.dumps(spec.to_json() | {"bytes": size}).encode())
        sync(tree)
        final = self.root / spec.name
        if os.path.lexists(final):
            replaced = self._trash_path()
            _replace(tree, final, replaced)
            sync(self.root)  # before the old tree is deleted
            _delete_trash(replaced)
        else:
            tree.rename(final)  # if a power cut undoes the rename, the model is fetched again
        return Stored(spec, size, loaded=False)

    def remove(self, name: str) -> None:
        """Delete a model: first its name, in one step, then its files."""
        final = self.root / name
        if os.path.lexists(final):
            trash = self._trash_path()
            final.rename(trash)
            sync(self.root)
            _delete_trash(trash)

    def record_loaded(self, name: str) -> None:
        """Record, for the next start, that the model server has loaded this tree."""
        (self.root / name / LOADING).rename(self.root / name / LOADED)

    def record_loading(self, name: str, loading: bool) -> None:
        """Record, for the next start, whether a load of this tree is in progress."""
        record = self.root / name / LOADING
        if loading:
            record.touch(0o644)
        else:
            record.unlink(missing_ok=True)

    def record_ready(self, pod: str) -> None:
        """Record, for a puller that restarts in the same pod, that all models were loaded."""
        write_atomically(self._work / "ready", pod.encode(), durable=False)

    def was_ready(self, pod: str) -> bool:
        """Whether `record_ready` was called for this pod."""
        try:
            with (self._work / "ready").open("rb") as file:
                return pod != "" and file.read(1024) == pod.encode()
        except OSError:
            return False

    def _trash_path(self) -> Path:
        """A free name in a new directory, for a tree that is to be deleted."""
        parent = self._work / "old"
        parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=parent)) / "tree"


def archive_dir(staging: Path) -> Path:
    """The directory of the archive that a staged model is unpacked from."""
    return staging.parent.with_name("archives") / staging.name


def _make_own(directory: Path) -> None:
    """Create a directory of the puller. A link there leads to files of others, so it is removed."""
    if directory.is_symlink():
        directory.unlink()
    directory.mkdir(exist_ok=True)


def _remove_leftover(leftover: Path) -> None:
    try:
        remove_tree(leftover)
    except Exception as error:  # models must be served in spite of it
        message = f"{type(error).__name__}: {error}"
        logger.warning("leftover not removed", directory=leftover.name, error=message)


def _replace(tree: Path, final: Path, replaced: Path) -> None:
    """Rename the old `final` to `replaced`, and `tree` to `final`. In between, the model is absent,
    never partial."""
    final.rename(replaced)
    try:
        tree.rename(final)
    except OSError:
        replaced.rename(final)
        raise


def _delete_trash(trash: Path) -> None:
    """Delete a replaced or removed tree. If that fails, the next start deletes it."""
    with suppress(OSError):
        remove_tree(trash.parent)


def _read_marker(name: str, path: Path) -> tuple[ModelSpec, int | None] | None:
    """(spec, size if the puller wrote it) of a marker, also of KServe's; None for an empty or broken one."""
    try:
        raw = json.loads(read_regular(path, _MAX_MARKER)[0])
        size = raw.get("bytes") if isinstance(raw, dict) else None
        return from_json(name, raw), size if isinstance(size, int) and size >= 0 else None
    except (OSError, ValueError, RecursionError, RefusedError):
        return None


def _lock_file(path: Path) -> int:
    """An open, locked file. The kernel releases the lock when the process ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StoreBusyError(f"another puller is using {path.parent.parent}") from None
    except OSError:
        pass  # a file system without locks: the kubelet starts one puller at a time anyway
    return descriptor
