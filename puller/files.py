"""Files and trees on disk: flushed, replaced atomically, measured, and removed at any depth."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

_BATCH = 1 << 16
"""Entries of a directory that are held in memory at a time."""


def tree_size(directory: Path) -> int:
    """Bytes in the regular files below."""
    return sum(_sizes(directory))


def flush_tree(directory: Path) -> int:
    """Flush every file and directory below to stable storage, except `directory` itself. Returns the bytes
    in the files."""
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


def read_regular(path: Path, limit: int) -> tuple[bytes, os.stat_result]:
    """The first `limit` bytes of a regular file. Raises OSError, also for links and pipes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123  (a descriptor, not a path)
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read(limit), found


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file's content; readers see the old or the new content, never a part."""
    scratch = path.with_name(f".{path.name}.new")
    with scratch.open("wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    scratch.replace(path)


def _sizes(directory: Path) -> Iterator[int]:
    """The sizes of the files below. Entries that cannot be read, or whose path is too long, are skipped."""
    waiting = [os.fspath(directory)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        yield entry.stat(follow_symlinks=False).st_size


def remove_tree(path: Path) -> None:
    """Delete a file, a link or a tree of any depth, also with directories that an archive made unwritable.

    The depth may exceed the limits of recursion, paths and descriptors. So the subdirectories of each
    directory are moved to the top of the tree and emptied there. Two descriptors are open at a time, and one
    batch of names is in memory.
    """
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
        top = _open_directory(os.fspath(path))
    except FileNotFoundError:
        return
    moved = _MovedDirectories()
    try:
        _empty_directory(top, top, moved)
        while moved.names:
            name = moved.names.pop()
            directory = _open_directory(name, top)
            try:
                _empty_directory(directory, top, moved)
            finally:
                os.close(directory)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    path.rmdir()


@dataclass(slots=True)
class _MovedDirectories:
    """Directories that were moved to the top of a tree, under unique names."""

    prefix: str = field(default_factory=lambda: f".moved-{secrets.token_hex(8)}-")
    names: list[str] = field(default_factory=list)
    count: int = 0

    def add(self) -> str:
        self.count += 1
        self.names.append(f"{self.prefix}{self.count}")
        return self.names[-1]


def _empty_directory(directory: int, top: int, moved: _MovedDirectories) -> None:
    """Unlink the files of an open directory; move its subdirectories to the top."""
    while True:
        with os.scandir(directory) as entries:
            others = (entry for entry in entries if not entry.name.startswith(moved.prefix))
            batch = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(others, _BATCH)]
        if not batch:
            return
        for name, is_directory in batch:
            if not is_directory:
                os.unlink(name, dir_fd=directory)
                continue
            with suppress(PermissionError):
                os.chmod(name, 0o700, dir_fd=directory)  # only a writable directory can be moved
            os.rename(name, moved.add(), src_dir_fd=directory, dst_dir_fd=top)


def _open_directory(name: str, parent: int | None = None) -> int:
    """A descriptor of a directory, which is made writable."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(PermissionError):
        os.chmod(name, 0o700, dir_fd=parent)
    return os.open(name, flags, dir_fd=parent)
