"""A mounted ConfigMap, read as of one moment. Standard library only: the webhook reads its policy with it.

Kubelet writes every version into a new directory, swaps the link `..data` to it and then removes the
files of the old one, one by one. A reader that has listed the old one finds fewer and fewer of them, and
a missing file would look like one that was never written. So files that were read while the link changed do
not count.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

DATA = "..data"
_TRIES = 10


class UnstableError(OSError):
    """The directory does not hold still, or its link leads nowhere."""


def linked(directory: Path) -> bool:
    """Whether kubelet keeps this directory: then it may be empty because the ConfigMap is."""
    return (directory / DATA).is_symlink()


def read_mounted(directory: Path, wanted: Callable[[str], bool], largest: int) -> dict[str, bytes]:
    """The regular files of those names as of one moment, at most `largest` bytes of each and one more.

    A directory that is no volume is read likewise: its files may be edited in place, but not while they are
    read. FileNotFoundError if there is none, UnstableError if it never holds still, or another OSError.
    """
    for _ in range(_TRIES):
        try:
            before = _version(directory)
            files = _files(directory / DATA if linked(directory) else directory, wanted, largest)
            if before == _version(directory):
                return files
        except FileNotFoundError:
            if not directory.is_dir():
                raise
    raise UnstableError(f"{directory} changes faster than it can be read")


def _version(directory: Path) -> object:
    """Something that differs when the content may."""
    if linked(directory):
        return (directory / DATA).readlink()
    with os.scandir(directory) as entries:
        return sorted((entry.name, entry.stat().st_mtime_ns, entry.stat().st_size) for entry in entries)


def _files(directory: Path, wanted: Callable[[str], bool], largest: int) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for path in sorted(directory.iterdir()):
        if wanted(path.name):
            found = path.stat()
            if stat.S_ISREG(found.st_mode):
                with path.open("rb") as file:
                    files[path.name] = file.read(largest + 1)
    return files
