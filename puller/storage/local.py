"""Models that are already in the pod, file:// and pvc://: linked or copied. Links must stay in the model."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from puller.reasons import StatusReason
from puller.storage.base import MAX_DEPTH, FetchProgress, StorageError, safe_path
from puller.storage.objects import archive_kind, check_name, selected

_BLOCK = 64 << 20


def local_path(uri: str, pvc_dir: Path) -> Path:
    """The path of a file:// or pvc:// URI. Claims are mounted at `<pvc_dir>/<claim>`, or one at
    `<pvc_dir>`."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    below = unquote(parts.path).strip("/")
    claim = pvc_dir / parts.netloc
    return (claim if claim.is_dir() else pvc_dir) / below


def listing(root: Path, files: tuple[str, ...]) -> list[tuple[Path, str, int]]:
    """(file, path below the model's directory, bytes) of a local model: a tree or one file."""
    try:
        if root.is_file():
            if not archive_kind(root.name):
                check_name(root.name)
            return [(root, safe_path(root.name), root.stat().st_size)]
        found = list(_walk(root, root.resolve(strict=True), files))
    except FileNotFoundError as error:
        raise StorageError(
            StatusReason.NOT_FOUND, f"there is no {error.filename} in this container."
        ) from None
    except OSError as error:
        raise StorageError(
            StatusReason.SOURCE_UNREADABLE, f"{root} cannot be read: {error.strerror}."
        ) from None
    if not found:
        raise StorageError(
            StatusReason.NOT_FOUND, f"{root} has no file" + (" that matches `files`." if files else ".")
        )
    return found


def take(
    items: list[tuple[Path, str, int]], into: Path, progress: FetchProgress, stopped: Callable[[], bool]
) -> None:
    """Hard-link each file into the tree, or copy it if that is impossible (usually another mount)."""
    for source, path, size in items:
        target = into / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source.resolve(), target)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EMLINK):
                raise
            _copy(source, target, size, progress, stopped)
        else:
            progress.done += size


def _walk(root: Path, real_root: Path, files: tuple[str, ...]) -> Iterator[tuple[Path, str, int]]:
    for parent, directories, names in os.walk(root, onerror=_raise, followlinks=True):
        directories.sort()
        if len(Path(parent).relative_to(root).parts) > MAX_DEPTH:
            raise StorageError(
                StatusReason.HOSTILE_PATH, f"{root} has over {MAX_DEPTH} directories in each other."
            )
        for directory in directories:
            link = Path(parent, directory)
            if link.is_symlink() and Path(parent).resolve().is_relative_to(_within(link, root, real_root)):
                raise StorageError(
                    StatusReason.HOSTILE_PATH, f"the link {_below(link, root)!r} leads in a circle."
                )
        for name in sorted(names):
            source = Path(parent, name)
            path = _below(source, root)
            if not selected(path, files):
                continue
            _within(source, root, real_root)
            found = source.stat()
            if not stat.S_ISREG(found.st_mode):
                raise StorageError(StatusReason.HOSTILE_PATH, f"{path!r} is neither a file nor a directory.")
            yield source, safe_path(path), found.st_size


def _raise(error: OSError) -> None:
    raise error


def _below(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _within(path: Path, root: Path, real_root: Path) -> Path:
    """The resolved path. Raises StorageError if it is outside of the tree."""
    try:
        real = path.resolve(strict=True)
    except (RuntimeError, OSError) as error:  # RuntimeError until Python 3.12
        if isinstance(error, OSError) and error.errno != errno.ELOOP:
            raise
        raise StorageError(
            StatusReason.HOSTILE_PATH, f"the link {_below(path, root)!r} leads in a circle."
        ) from None
    if not real.is_relative_to(real_root):
        raise StorageError(StatusReason.HOSTILE_PATH, f"the link {_below(path, root)!r} leads out of {root}.")
    return real


def _copy(
    source: Path, target: Path, size: int, progress: FetchProgress, stopped: Callable[[], bool]
) -> None:
    with source.open("rb", buffering=0) as reader, target.open("wb") as writer:
        copied = 0
        while not stopped() and (count := _copy_block(reader, writer)):
            copied += count
            progress.done += count
    if copied != size and not stopped():
        raise StorageError(StatusReason.SOURCE_CHANGED, f"{source} changed while it was copied.")


def _copy_block(reader: FileIO, writer: IO[bytes]) -> int:
    """Copy from the current positions, inside the kernel if possible (a reflink on some file systems).
    Returns the number of bytes, 0 at the end."""
    try:
        return os.copy_file_range(reader.fileno(), writer.fileno(), _BLOCK)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise
    return writer.write(reader.read(1 << 20) or b"")
