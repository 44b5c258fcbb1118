"""A mounted ConfigMap, read at one moment. Standard library only: the webhook reads its policy with it.

The kubelet writes each version into a new directory, renames the link `..data` to it, and then removes the
files of the old directory one by one. A reader of the old directory could miss files. So files that were read
while the link changed are read again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

DATA = "..data"
_TRIES = 10


class UnstableError(OSError):
    """The directory changes all the time, or its link is broken."""


def linked(directory: Path) -> bool:
    """Whether this is a volume of kubelet: if it is empty, so is the ConfigMap."""
    return (directory / DATA).is_symlink()


def read_mounted(directory: Path, selected: Callable[[str], bool], limit: int) -> dict[str, bytes]:
    """The selected regular files at one moment, by name; at most `limit` + 1 bytes of each.

    Ordinary directories are read in the same way. Raises FileNotFoundError if there is no directory,
    UnstableError if it changes during each attempt, or another OSError.
    """
    for _ in range(_TRIES):
        try:
            before = _version(directory)
            files = _files(directory / DATA if linked(directory) else directory, selected, limit)
            if before == _version(directory):
                return files
        except FileNotFoundError:
            if not directory.is_dir():
                raise
    raise UnstableError(f"{directory} changes faster than it can be read")


def _version(directory: Path) -> object:
    """A value that changes with the content."""
    if linked(directory):
        return (directory / DATA).readlink()
    with os.scandir(directory) as entries:
        return sorted((entry.name, entry.stat().st_mtime_ns, entry.stat().st_size) for entry in entries)


def _files(directory: Path, selected: Callable[[str], bool], limit: int) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for path in sorted(directory.iterdir()):
        if selected(path.name):
            found = path.stat()
            if stat.S_ISREG(found.st_mode):
                with path.open("rb") as file:
                    files[path.name] = file.read(limit + 1)
    return files
