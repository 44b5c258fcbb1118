"""Earlier releases, as commits of this repository: what an upgrade starts from."""

from __future__ import annotations

import subprocess
import tarfile
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path

from tests.e2e.binaries import cache_directory, locked
from tests.e2e.install import REPOSITORY


@dataclass(frozen=True)
class Release:
    """A commit that somebody may have installed."""

    commit: str

    def __str__(self) -> str:
        return self.commit

    @property
    def tree(self) -> Path:
        """Its files, read from the history once."""
        return _tree(self.commit)


BEFORE_LAST = Release("2ba0e5c")
"""N-2 by kubectl and kustomize: it keeps the Leases of worker names next to the workers, and needs the rights
for that."""
LAST = Release("bbd8e02")
"""N-1."""
FIRST_CHART = Release("309932d")
"""N-2 by Helm, the first chart: it lacks most of the values of today."""


@cache
def _tree(commit: str) -> Path:
    directory = cache_directory() / "releases" / commit
    with locked(directory):
        if not directory.exists():
            command = ["git", "-C", str(REPOSITORY), "archive", "--format=tar", commit]
            done = subprocess.run(command, capture_output=True, check=False)
            if done.returncode:
                raise RuntimeError(
                    f"Commit {commit}, where upgrades start, is not in this clone: git fetch --unshallow "
                    f"fetches the whole history. {done.stderr.decode().strip()}"
                )
            unpacked = directory.with_name(f".{commit}.unpacking")
            with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
                archive.extractall(unpacked, filter="data")
            unpacked.rename(directory)
    return directory
