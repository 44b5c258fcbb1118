"""Removes what the kernel leaves of a run: `python reaper.py DIRECTORY LOCK < pipe`.

It waits in a new session until no process holds the other end of the pipe, so that it outlives the run in any
case.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

PREFIX = "ml-chassis-"
LOCK = ".lock"
PATIENCE = 60
"""Seconds for killed processes to leave their cgroups and files; they take milliseconds."""


def hierarchies(*kinds: str) -> list[Path]:
    """Where cgroup hierarchies of these kinds ("cgroup" for version 1, "cgroup2") are mounted."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [Path(target) for _, target, kind, *_ in mounts if kind in kinds]


def make_cgroups(name: str) -> None:
    """One directory in each hierarchy of version 1, with the processors and memory of its parent."""
    for hierarchy in hierarchies("cgroup"):
        (hierarchy / name).mkdir()
        for file in ("cpuset.cpus", "cpuset.mems"):
            with suppress(FileNotFoundError):
                (hierarchy / name / file).write_text((hierarchy / file).read_text())


def remove(directory: Path) -> None:
    """The cgroups and the files of a run whose processes are gone, or about to go."""
    deadline = time.monotonic() + PATIENCE
    while (left := [path for path in _remains(directory) if path.exists()]) and time.monotonic() < deadline:
        for path in left:
            if path == directory:
                shutil.rmtree(path, ignore_errors=True)
                continue
            for inner, _, _ in os.walk(path, topdown=False):
                with suppress(OSError):  # a killed process may linger in one for a moment
                    os.rmdir(inner)  # noqa: PTH106
        time.sleep(0.02)


def _remains(directory: Path) -> list[Path]:
    # runc makes one in a cgroup2 hierarchy in addition to those.
    return [*(it / directory.name for it in hierarchies("cgroup", "cgroup2")), directory]


def sweep(base: Path) -> None:
    """Remove the remains of runs whose reaper was killed too."""
    for lock in base.glob(f"{PREFIX}*{LOCK}"):
        with suppress(FileNotFoundError, BlockingIOError), lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(Path(str(lock).removesuffix(LOCK)))
            lock.unlink()


def main() -> None:
    """Wait for the end of the run, then remove what it left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    directory = Path(sys.argv[1])
    remove(directory)
    Path(str(directory) + LOCK).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
