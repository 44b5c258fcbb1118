"""Namespaces and cgroups of one run: made here, left by nothing.

The command runs as a child of PID 1 of new mount, network, PID, UTS and IPC namespaces. Its end ends that
process, and the kernel ends everything else in the namespaces with it; so does the end of this process,
however it comes. What the kernel leaves, empty cgroups and files, `reaper.py` removes, which no signal to
this process reaches.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.e2e.binaries import cache_directory, locked
from tests.e2e.node import reaper
from tests.e2e.processes import TETHER

NAMESPACES = ("--mount", "--net", "--pid", "--uts", "--ipc")
DIRECTORY = "MLCHASSIS_NODE"
"""The variable by which the command in a sandbox knows its directory."""


def why_not() -> str | None:
    """Why this machine can't run a real node, as a sentence; None if it can."""
    if os.geteuid() != 0:
        return "it needs root."
    missing = {"cpu", "cpuset", "memory", "pids"} - {path.name for path in reaper.hierarchies("cgroup")}
    if missing:
        return f"it needs the cgroup v1 hierarchies, and {', '.join(sorted(missing))} is not mounted."
    probe = ["unshare", *NAMESPACES, "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        done = subprocess.run(probe, text=True, capture_output=True)
    except FileNotFoundError:
        return "it needs the programs unshare and mount (util-linux)."
    if done.returncode:
        return f"namespaces of its own are refused to it ({done.stderr.strip()})."
    return None


def run(command: Sequence[str | Path], store: Path) -> int:
    """Run a command in a sandbox, with this terminal; return its exit status, 128 + n for a signal n.

    Args:
        command: a program and its arguments.
        store: the image store, which the command finds as `store` in the sandbox's directory.
    """
    with _directory() as directory:
        (directory / "store").symlink_to(store)
        child = subprocess.Popen(
            [
                sys.executable, TETHER, str(os.getpid()),
                "unshare", *NAMESPACES, "--fork", "--kill-child", "--propagation", "private",
                sys.executable, "-m", "tests.e2e.node.init", directory, *command,
            ],
            env=os.environ | {DIRECTORY: str(directory)},
        )  # fmt: skip
        # Ctrl-C reaches the command by itself, as a part of the terminal's foreground; it decides.
        previous = {
            signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
            signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: _terminate(directory)),
        }
        try:
            status = child.wait()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def inside() -> Path | None:
    """The directory of the sandbox in which this process runs; None outside of one."""
    name = os.environ.get(DIRECTORY)
    return Path(name) if name else None


def enter(directory: Path) -> list[str]:
    """The command line that runs the words after it inside, from outside."""
    return ["nsenter", "-t", (directory / "init.pid").read_text(), "-m", "-n", "-p", "-u", "-i", "--"]


def _terminate(directory: Path) -> None:
    with suppress(FileNotFoundError, ProcessLookupError, ValueError):
        os.kill(int((directory / "init.pid").read_text()), signal.SIGTERM)


@contextmanager
def _directory() -> Iterator[Path]:
    """A directory next to the image store, whose name is also that of its cgroups; both gone at the end."""
    base = cache_directory() / "node"
    with ExitStack() as stack:
        with locked(base / "sweep"):
            reaper.sweep(base)
            lock = stack.enter_context(
                tempfile.NamedTemporaryFile(dir=base, prefix=reaper.PREFIX, suffix=reaper.LOCK, delete=False)
            )
            # Held by the reaper too: the next run removes directories without a holder.
            fcntl.flock(lock, fcntl.LOCK_EX)
        directory = Path(lock.name.removesuffix(reaper.LOCK))
        directory.mkdir()
        waits, stays = os.pipe()
        watch = subprocess.Popen(
            [sys.executable, reaper.__file__, directory, str(lock.fileno())],
            stdin=waits,
            pass_fds=[lock.fileno()],
            start_new_session=True,
        )
        os.close(waits)
        try:
            reaper.make_cgroups(directory.name)
            yield directory
        finally:
            os.close(stays)
            watch.wait()
