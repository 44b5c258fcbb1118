"""A load generator: HTTPS with keep-alive connections, to a webhook as an API server has them, and to an API
server as one client has them."""

from __future__ import annotations

import asyncio
import os
import random
import re
import ssl
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

NAP_SECONDS = 50e-6

QUIET = 0.02
"""CPU seconds a second under which a process has nothing to do."""

CONNECTIONS = 25
"""What an API server keeps open to one webhook when it is idle."""


def cpu(pid: int) -> float:
    """Seconds of CPU that the threads of a process have used, as the scheduler counts them: in nanoseconds,
    where /proc/PID/stat has ticks of 10 ms."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads) / 1e9


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in family(int(child)))]


def used(pids: Sequence[int]) -> float:
    """Seconds of CPU that these processes have used."""
    return sum(map(cpu, pids))


def settle(pids: Sequence[int], seconds: float) -> None:
    """Wait until these processes have nothing more to do, at most so long."""
    deadline, step, before = time.monotonic() + seconds, 0.25, used(pids)
    while time.monotonic() < deadline:
        time.sleep(step)
        now = used(pids)
        if now - before < QUIET * step * len(pids):
            return
        before = now


def memory(pid: int) -> dict[str, float]:
    """What the kernel counts of a process's memory, in MiB, by its name for it, such as Rss and Pss."""
    counted = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return {name: int(kib) / 1024 for name, kib in re.findall(r"^(\w+): +(\d+) kB", counted, re.MULTILINE)}


@contextmanager
def apart(pid: int) -> Iterator[None]:
    """This process on one CPU and the server's on another, so that neither waits for the other, and both
    before all else that runs, where that is allowed."""
    cpus = sorted(os.sched_getaffinity(0))
    try:
        _run_on(pid, cpus[1:2] or cpus, os.SCHED_FIFO)
        _run_on(os.getpid(), cpus[:1], os.SCHED_FIFO)
        yield
    finally:
        for each in (pid, os.getpid()):
            _run_on(each, cpus, os.SCHED_OTHER)


def _run_on(pid: int, cpus: Sequence[int], policy: int) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cpus)
        with suppress(PermissionError):
            os.sched_setscheduler(int(thread.name), policy, os.sched_param(policy == os.SCHED_FIFO))


def closed(port: int, path: str, reviews: Sequence[bytes]) -> None:
    """Send each review once: every connection sends its next when it has its answer."""
    _run(_closed(port, path, reviews))


def cost(server: int, port: int, path: str, known: Sequence[bytes], reviews: Sequence[bytes]) -> float:
    """Seconds of CPU that the process `server` uses for one of the reviews, sent as `closed` does.

    The connections are there before: API servers keep theirs. `known` is sent on them first, unmeasured.
    """
    return _run(_cost(server, port, path, known, reviews))


def open_loop(port: int, path: str, reviews: Sequence[bytes], rate: float, seed: int) -> list[float]:
    """Send each review once, at the times of a Poisson process of `rate` a second, independent of the server.

    Returns the seconds from when a review was due until its answer was there, in rising order: what waits for
    a free connection has waited, too.
    """
    return sorted(_run(_open(port, path, reviews, rate, random.Random(seed))))


@dataclass(frozen=True)
class Paced:
    """Requests that were sent at a rate: how long each took, in rising order, and how long all of them."""

    latencies: list[float]
    seconds: float


def paced(
    port: int,
    path: str,
    headers: Mapping[str, str],
    bodies: Sequence[bytes],
    rate: float,
    seconds: float,
    patience: float = 60.0,
) -> Paced:
    """POST the bodies at the times of a Poisson process of `rate` a second, for so many seconds. TimeoutError
    if the last answers take `patience` seconds more.

    At most `CONNECTIONS` are on their way at once: a server that cannot follow gets fewer, and the rate that
    it reached follows from the result. A latency begins when the request is sent.
    """
    work = _paced(port, path, headers, bodies, rate, seconds)
    return _run(asyncio.wait_for(work, seconds + patience))


def _run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


class _Connection:
    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        path: str,
        headers: Mapping[str, str],
    ) -> None:
        self._reader, self._writer = reader, writer
        lines = (f"{name}: {value}\r\n" for name, value in headers.items())
        self._head = (
            f"POST /{path} HTTP/1.1\r\n{''.join(lines)}Content-Type: application/json\r\nContent-Length: "
        ).encode()

    @classmethod
    async def open(cls, port: int, path: str, headers: Mapping[str, str]) -> _Connection:
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls, limit=2**22), path, headers)

    async def send(self, review: bytes) -> bytes:
        """The body of the answer."""
        self._writer.write(b"%s%d\r\n\r\n%s" % (self._head, len(review), review))
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith((b"http/1.1 200", b"http/1.1 201")):
            raise SystemExit(f"{head.decode()}{(await self._reader.read(2000)).decode(errors='replace')}")
        if b"transfer-encoding: chunked" in head:  # Go's, where an answer is longer than its buffer
            return await self._chunks()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return await self._reader.readexactly(length)

    async def _chunks(self) -> bytes:
        parts = []
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            parts.append((await self._reader.readexactly(size + 2))[:-2])
        await self._reader.readexactly(2)
        return b"".join(parts)

    async def close(self) -> None:
        self._writer.close()
        await asyncio.gather(self._writer.wait_closed(), return_exceptions=True)


async def _opened(port: int, path: str, headers: Mapping[str, str]) -> list[_Connection]:
    return list(await asyncio.gather(*(_Connection.open(port, path, headers) for _ in range(CONNECTIONS))))


async def _to_webhook(port: int, path: str) -> list[_Connection]:
    return await _opened(port, f"{path}?timeout=10s", {"Host": "mlchassis.mlchassis-system.svc"})


async def _closed(port: int, path: str, reviews: Sequence[bytes]) -> None:
    connections = await _to_webhook(port, path)
    await _send_all(connections, reviews)
    await _close(connections)


async def _cost(server: int, port: int, path: str, known: Sequence[bytes], reviews: Sequence[bytes]) -> float:
    connections = await _to_webhook(port, path)
    await _send_all(connections, known)
    before = cpu(server)
    await _send_all(connections, reviews)
    used = cpu(server) - before
    await _close(connections)
    return used / len(reviews)


async def _send_all(connections: Sequence[_Connection], reviews: Sequence[bytes]) -> None:
    waiting = iter(reviews)

    async def send(connection: _Connection) -> None:
        for review in waiting:
            answer = await connection.send(review)
            assert b'"response"' in answer, answer

    await asyncio.gather(*map(send, connections))


async def _close(connections: Sequence[_Connection]) -> None:
    await asyncio.gather(*(connection.close() for connection in connections))


async def _until(due: float) -> None:
    """uvloop's timers have milliseconds: the rest is waited for in naps, with a look at new bytes between
    them."""
    await asyncio.sleep(max(due - time.perf_counter() - 0.002, 0))
    while time.perf_counter() < due:
        time.sleep(NAP_SECONDS)  # noqa: ASYNC251
        await asyncio.sleep(0)


async def _open(
    port: int, path: str, reviews: Sequence[bytes], rate: float, chance: random.Random
) -> list[float]:
    free: asyncio.Queue[_Connection] = asyncio.Queue()
    for connection in await _to_webhook(port, path):
        free.put_nowait(connection)
    latencies: list[float] = []

    async def send(review: bytes, due: float) -> None:
        connection = await free.get()
        await connection.send(review)
        latencies.append(time.perf_counter() - due)
        free.put_nowait(connection)

    due, sending = time.perf_counter(), []
    for review in reviews:
        due += chance.expovariate(rate)
        await _until(due)
        sending.append(asyncio.create_task(send(review, due)))
    await asyncio.gather(*sending)
    while not free.empty():
        await free.get_nowait().close()
    return latencies


async def _paced(
    port: int, path: str, headers: Mapping[str, str], bodies: Sequence[bytes], rate: float, seconds: float
) -> Paced:
    free: asyncio.Queue[_Connection] = asyncio.Queue()
    for connection in await _opened(port, path, headers):
        free.put_nowait(connection)
    latencies: list[float] = []

    async def send(connection: _Connection, body: bytes) -> None:
        began = time.perf_counter()
        await connection.send(body)
        latencies.append(time.perf_counter() - began)
        free.put_nowait(connection)

    async with asyncio.TaskGroup() as sending:
        chance = random.Random(len(bodies))
        began = due = time.perf_counter()
        for body in bodies:
            due += chance.expovariate(rate)
            connection = await free.get()
            if max(due, time.perf_counter()) > began + seconds:
                free.put_nowait(connection)
                break
            await _until(due)
            sending.create_task(send(connection, body))
    elapsed = time.perf_counter() - began
    while not free.empty():
        await free.get_nowait().close()
    return Paced(sorted(latencies), elapsed)
