"""A pod's surroundings for a server: its own addresses and process 1, gone with the test."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.e2e.processes import Process

ADDRESS: Final = "10.42.0.7"
HOSTS: Final = (ADDRESS, "100.64.3.9", "[fd00:42::7]")
"""Pod addresses as clusters hand them out: private, shared (RFC 6598), IPv6 (RFC 4193)."""

_CLONE_NEWNET: Final = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def pod_network() -> Iterator[None]:
    """Move this thread, and what it starts, into a network namespace that has nothing but those addresses.

    It ends with its last process. Needs root.
    """
    with Path("/proc/thread-self/ns/net").open() as before:
        if _libc.unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "a network namespace of its own needs root")
        try:
            for address in HOSTS:
                address = address.strip("[]")
                length = 128 if ":" in address else 32
                _ip("address", "add", f"{address}/{length}", "dev", "lo")
            _ip("link", "set", "lo", "up")
            # Servers ask the routes for their own address, as Ray does.
            _ip("route", "add", "default", "dev", "lo", "src", ADDRESS)
            yield
        finally:
            _libc.setns(before.fileno(), _CLONE_NEWNET)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


INSIDE: Final = "/mnt/served"
"""Where a container sees the folder that it serves from."""

# A private /tmp: Ray finds other clusters there.
_MOUNTS: Final = 'mount --bind "$0" /mnt && mount -t tmpfs tmpfs /tmp && cd /mnt/served && exec "$@"'


class Container:
    """A command as process 1 of a PID namespace: when it ends, or the test does, all that it started ends.

    It sees `volume`, which has a folder `served`, as /mnt, and an empty /tmp.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str], volume: Path
    ) -> None:
        isolated = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self.process = Process(name, [*isolated, "sh", "-c", _MOUNTS, volume, *command], log, env)
        self.env = env

    def inside(self, command: Sequence[str]) -> list[str]:
        """A command that runs another one in the container, as the kubelet lets a runtime do."""
        return ["nsenter", "--target", *self._first()[:1], "--pid", "--net", "--mount", *command]

    @property
    def runs(self) -> bool:
        """Whether its first process has not ended yet."""
        return self.process.running and bool(self._first())

    def _first(self) -> list[str]:
        """Its first process, as it is numbered outside; nothing if it has ended."""
        return Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()

    def freeze(self) -> None:
        """SIGSTOP to every process of it: a server that hangs."""
        stopped: set[int] = set()
        while new := self.pids() - stopped:
            self._signal(new, signal.SIGSTOP)
            stopped |= new
        # A thread on a processor goes on until the kernel has interrupted it: long enough to answer a probe.
        self.process.wait_until(lambda: not any(map(_runs, stopped)), 60)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(self.pids(), signal.SIGCONT)

    def remove(self) -> None:
        """End all of it at once."""
        self.process.kill()

    def pids(self) -> set[int]:
        """All of its processes, by their ids outside of it."""
        namespace = Path(f"/proc/{self.process.pid}/ns/pid_for_children").readlink()
        found = set()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if (entry / "ns" / "pid").readlink() == namespace:
                    found.add(int(entry.name))
            except OSError:  # it has ended
                continue
        return found

    @staticmethod
    def _signal(pids: set[int], number: signal.Signals) -> None:
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


def _runs(pid: int) -> bool:
    """Whether any thread of a process is not stopped yet."""
    states = set()
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            states.add(thread.read_text().rpartition(")")[2].split()[0])
        except OSError:  # it has ended
            continue
    return not states <= {"T", "Z", "X"}
