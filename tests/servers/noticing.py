"""What a server's probes notice: stopped and killed processes, calls that never return, hostile clients."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.servers.kubelet import FASTER
from tests.servers.sandbox import ADDRESS, Container
from tests.servers.server import Request

WATCH: Final = 15
"""Seconds for which the probes are watched: longer than the timeout of any."""
PATIENCE: Final = 160
"""The same for liveness by progress. Its times are divided by `FASTER`, but not the 10 s for which a check
waits until a connection is accepted."""
FAILURES: Final = 6
"""After so many failures in a row by progress, the kubelet restarts the container."""
BACK: Final = 5
"""Further seconds in which a client is to be served again."""
OWN_WATCHDOG: Final = 150
"""The same if liveness did not fail: TorchServe replaces a worker that has not answered for 120 s."""
CLIENTS: Final = 100
"""Connections at once: more than any server has threads for."""
_HELPERS: Final = re.compile(
    r"resource_tracker|forkserver|semaphore_tracker|^(sh|unshare)\b|\b(log_)?monitor|\bdashboard|tail -"
)
"""Processes that serve nobody."""


@dataclass(frozen=True)
class Noticed:
    """Seconds after which each probe failed for the first time, and then kept failing; None if it passed."""

    live: float | None
    ready: float | None
    served: bool
    """Whether a client that asked meanwhile got its answer."""
    recovers: bool | None = None
    """Whether a client was served again without a restart; None if it always was."""
    restart: bool | None = None
    """Whether a client was served after a restart; None if none was tried."""


def roles(container: Container) -> Mapping[str, list[int]]:
    """The processes of a container by their title: its first, then Ray's actors, without those that serve
    nobody."""
    found: dict[str, list[int]] = {}
    for pid in sorted(container.pids()):
        title = _title(pid)
        if title and not _HELPERS.search(title):
            found.setdefault(title, []).append(pid)
    first, *others = found
    return {title: found[title] for title in (first, *sorted(others, key=lambda it: "ray::" not in it))}


def _title(pid: int) -> str:
    """A process's command line in short, without the parts that differ between two of a kind; empty for a
    zombie."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
    words = [re.sub(r"(^|=)/.*/", r"\1", word) for word in words if word and ":/" not in word]
    if not words:
        return ""
    short = " ".join(words[:4]) if len(words[0]) < 60 else words[0]
    short = re.sub(r"\b0x[0-9a-f]+\b|\d{2,}", "N", short)[:70]
    return short if not name.startswith("ray::") else name.partition(" ")[0]


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """SIGSTOP to them; SIGCONT at the end."""
    _send(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        _send(pids, signal.SIGCONT)


@contextmanager
def thread_stopped(tid: int) -> Iterator[None]:
    """Stop one thread as a debugger does, while the others of its process go on."""
    _ptrace(_SEIZE, tid)
    try:
        _ptrace(_INTERRUPT, tid)
        os.waitpid(tid, _ANY_THREAD)
        yield
    finally:
        _ptrace(_DETACH, tid)


_SEIZE, _INTERRUPT, _DETACH, _ANY_THREAD = 0x4206, 0x4207, 17, 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _ptrace(request: int, tid: int) -> None:
    if _libc.ptrace(request, tid, None, None):
        raise OSError(ctypes.get_errno(), f"ptrace of thread {tid}")


def busiest_thread(container: Container, work: Callable[[], int]) -> int:
    """The thread that uses most of the processor during some work."""
    before = _ticks(container)
    assert work() == 200
    after = _ticks(container)
    return max(after, key=lambda tid: after[tid] - before.get(tid, 0))


def _ticks(container: Container) -> dict[int, int]:
    """How long each thread has computed."""
    stats = [file for pid in container.pids() for file in Path(f"/proc/{pid}/task").glob("*/stat")]
    return {
        int(file.parent.name): sum(map(int, file.read_text().rpartition(")")[2].split()[11:13]))
        for file in stats
    }


def kill(pids: list[int]) -> None:
    """SIGKILL to them."""
    _send(pids, signal.SIGKILL)


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


@contextmanager
def asking(request: Request, clients: int, times: int = 1) -> Iterator[None]:
    """Clients that ask, so many times without a pause, and never read an answer."""
    text = http_request(request) * times
    opened: list[socket.socket] = []
    for _ in range(clients):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.settimeout(2)
        opened.append(client)
        try:
            client.connect((ADDRESS, request.port))
            client.setblocking(False)
            client.send(text)
        except OSError:
            continue
    try:
        yield
    finally:
        for client in opened:
            client.close()


def http_request(request: Request, *headers: str) -> bytes:
    """The bytes that a client sends."""
    body = b"" if request.body is None else json.dumps(request.body).encode()
    head = [f"{'GET' if request.body is None else 'POST'} {request.path} HTTP/1.1", f"Host: {ADDRESS}"]
    head += [f"{name}: {value}" for name, value in request.headers.items()]
    head += ["Content-Type: application/json", f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([*head, *headers, "", ""]).encode() + body


@contextmanager
def keep_asking(request: Callable[[], int], clients: int) -> Iterator[None]:
    """Clients that send one request after the other, and wait for the answers."""
    ended = threading.Event()

    def client() -> None:
        while not ended.is_set():
            if request() != 200:
                ended.wait(0.5)

    threads = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()


def watch(
    succeeds: Callable[[str], bool],
    request: Callable[[float], int],
    *,
    recovers: bool,
    by_progress: bool = False,
) -> Noticed:
    """Ask each of the two probes once a second for a while, and let a client ask once, at the end again.

    Liveness by progress is asked every 3 s for longer, and a client that is not served asks again.
    """
    began, restarted = time.monotonic(), threading.Event()

    def failed_since(name: str) -> float | None:
        since, in_a_row, faster = None, 0, FASTER if by_progress and name == "livenessProbe" else 1
        seconds, period = (PATIENCE, 3) if faster > 1 else (WATCH, 1)
        while time.monotonic() < began + seconds and not restarted.is_set():
            asked = time.monotonic() - began
            if succeeds(name):
                since, in_a_row = None, 0
            else:
                since, in_a_row = since or round(asked * faster, 1), in_a_row + 1
            if faster > 1 and in_a_row == FAILURES:
                restarted.set()
            time.sleep(period)
        return since

    def client() -> bool:
        served = request(WATCH) == 200
        while by_progress and not served and time.monotonic() < began + PATIENCE and not restarted.is_set():
            request(BACK)
            time.sleep(1)
        return served

    with ThreadPoolExecutor(3) as pool:
        live, ready = (pool.submit(failed_since, name) for name in ("livenessProbe", "readinessProbe"))
        served = pool.submit(client).result()
    back = None
    if recovers and not served:
        until = time.monotonic() + (BACK if live.result() is not None else OWN_WATCHDOG)
        while not (back := request(BACK) == 200) and time.monotonic() < until:
            time.sleep(1)
    return Noticed(live.result(), ready.result(), served, back)
