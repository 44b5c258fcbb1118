"""Child processes with a log file and a readiness check, which never outlive the test run."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

TETHER = Path(__file__).with_name("tethered.py")
# Below the kernel's ephemeral range (32768 and up), so that no outgoing connection of another
# process can take the port between the moment it is chosen and the moment it is bound. For the
# same reason each of pytest's workers has ports of its own.
PORTS = range(18000 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8, 30000, 8)
START_TIMEOUT = 120
"""Seconds: with 2 busy cores a start takes ten, and a bound is no wait."""


class ProcessFailedError(RuntimeError):
    """A process ended, or did not become ready in time; carries the end of its log."""


def free_port() -> int:
    """A TCP port on 127.0.0.1 without a listener now."""
    for port in random.sample(PORTS, 200):
        with socket.socket() as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ProcessFailedError(f"no free port among 200 tried in {PORTS.start}-{PORTS.stop - 1}")


class Process:
    """A started command, tethered to this thread, in a new session.

    The new session keeps a Ctrl-C in the terminal from reaching the child: its starter stops it, in the right
    order. Start it from a thread that lives as long as the child should.
    """

    def __init__(
        self, name: str, command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        self.began = time.perf_counter()
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                [sys.executable, str(TETHER), str(os.getpid()), *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id of the command itself (the tether execs it)."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether the command has not ended yet."""
        return self._child.poll() is None

    def log_tail(self, lines: int = 25) -> str:
        """The last lines that the command printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def wait_until(
        self, ready: Callable[[], bool], timeout: float = START_TIMEOUT, interval: float = 0.05
    ) -> None:
        """Poll `ready` until it is true.

        Raises:
            ProcessFailedError: the command ended first, or `timeout` seconds went by.
        """
        deadline = time.monotonic() + timeout
        while not ready():
            if not self.running:
                raise ProcessFailedError(
                    f"{self.name} ended with status {self._child.returncode}; its log {self.log} ends:\n"
                    + self.log_tail()
                )
            if time.monotonic() > deadline:
                raise ProcessFailedError(
                    f"{self.name} was not ready within {timeout:g} s; its log {self.log} ends:\n"
                    + self.log_tail()
                )
            time.sleep(interval)

    def wait_until_it_ends(self, timeout: float) -> int:
        """Wait for its own end; return its exit status.

        Raises:
            ProcessFailedError: it still runs after `timeout` seconds.
        """
        try:
            return self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ProcessFailedError(f"{self.name} did not end within {timeout:g} s") from None

    def terminate(self, timeout: float = 10) -> int:
        """Ask it to end with SIGTERM and return its exit status; SIGKILL after `timeout` seconds."""
        if self.running:
            self._child.send_signal(signal.SIGTERM)
        try:
            return self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            return self.kill()

    def signal_end(self) -> None:
        """Ask it to end with SIGTERM, without waiting."""
        if self.running:
            self._child.send_signal(signal.SIGTERM)

    def pause(self) -> None:
        """Stop it with SIGSTOP; only `kill` is of use after that."""
        self._child.send_signal(signal.SIGSTOP)

    def kill(self) -> int:
        """End it at once: for servers whose state is thrown away anyway."""
        if self.running:
            self._child.kill()
        return self._child.wait()
