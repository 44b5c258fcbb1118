"""A pod's surroundings for a server: its own addresses and process 1, gone with the test."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.e2e.processes import Process

ADDRESS: Final = "10.42.0.7"
HOSTS: Final = (ADDRESS, "100.64.3.9", "[fd00:42::7]")
"""Pod addresses as clusters hand them out: private, shared (RFC 6598), IPv6 (RFC 4193)."""

_CPU: Final = Path("/sys/fs/cgroup/cpu")
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


class Quota:
    """A cgroup (version 1) whose processes together get a share of one processor. Needs root."""

    def __init__(self, name: str) -> None:
        self._group = _CPU / f"mlchassis-{name}"
        self._group.mkdir()

    @property
    def joining(self) -> list[str]:
        """The words before a command that is to run in it."""
        return ["sh", "-c", f'echo $$ > {self._group}/cgroup.procs; exec "$@"', "sh"]

    def take(self, pids: Iterable[int]) -> None:
        """Move running processes into it."""
        for pid in pids:
            with suppress(ProcessLookupError):  # it has ended
                (self._group / "cgroup.procs").write_text(str(pid))

    def set(self, share: float | None) -> None:
        """Give it so much of one processor; None: as much as there is."""
        period = 100_000
        (self._group / "cpu.cfs_quota_us").write_text(str(-1 if share is None else int(share * period)))

    def remove(self) -> None:
        """End what still runs in it, such as a probe that was given up, and remove it.

        Raises TimeoutError with the processes that do not end within a minute.
        """
        deadline = time.monotonic() + 60
        while left := (self._group / "cgroup.procs").read_text().split():
            if time.monotonic() > deadline:
                raise TimeoutError(f"of {self._group}, these processes do not end: {left}")
            for pid in left:
                with suppress(ProcessLookupError):  # it has ended
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.1)
        self._group.rmdir()


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
        self.quota: Quota | None = None

    def limit(self, quota: Quota) -> None:
        """Let all of its processes, and what the kubelet runs in it, share a quota."""
        self.process.wait_until(lambda: self.runs, 60)  # until then its namespace is this one
        self.quota = quota
        moved: set[int] = set()
        while new := self.pids() - moved:
            quota.take(new)
            moved |= new

    def inside(self, command: Sequence[str]) -> list[str]:
        """A command that runs another one in the container, as the kubelet lets a runtime do."""
        joining = self.quota.joining if self.quota else []
        return [*joining, "nsenter", "--target", *self._first()[:1], "--pid", "--net", "--mount", *command]

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

    def descendants(self) -> list[int]:
        """Its first process and what that has started: no probes, whose `nsenter` would stop with them."""
        found = [int(pid) for pid in self._first()]
        for pid in found:
            with suppress(OSError):  # it has ended
                for children in Path(f"/proc/{pid}/task").glob("*/children"):
                    found += [int(child) for child in children.read_text().split()]
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
