"""A load generator for admission webhooks: HTTPS with keep-alive connections, as an API server has them."""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

NAP_SECONDS = 50e-6

CONNECTIONS = 25
"""What an API server keeps open to one webhook when it is idle."""


def cpu(pid: int) -> float:
    """Seconds of CPU that the threads of a process have used, as the scheduler counts them: in nanoseconds,
    where /proc/PID/stat has ticks of 10 ms."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads) / 1e9


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
    """Send each review once, at the times of a Poisson process of `rate` a second, whatever the server does.

    Returns the seconds from when a review was due until its answer was there, in rising order: what waits for
    a free connection has waited, too.
    """
    return sorted(_run(_open(port, path, reviews, rate, random.Random(seed))))


def _run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        self._reader, self._writer = reader, writer
        self._head = (
            f"POST /{path}?timeout=10s HTTP/1.1\r\nHost: mlchassis.mlchassis-system.svc\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        ).encode()

    @classmethod
    async def open(cls, port: int, path: str) -> _Connection:
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls, limit=2**22), path)

    async def send(self, review: bytes) -> bytes:
        """The body of the answer."""
        self._writer.write(b"%s%d\r\n\r\n%s" % (self._head, len(review), review))
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200"), head
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


async def _opened(port: int, path: str) -> list[_Connection]:
    return list(await asyncio.gather(*(_Connection.open(port, path) for _ in range(CONNECTIONS))))


async def _closed(port: int, path: str, reviews: Sequence[bytes]) -> None:
    connections = await _opened(port, path)
    await _send_all(connections, reviews)
    await _close(connections)


async def _cost(server: int, port: int, path: str, known: Sequence[bytes], reviews: Sequence[bytes]) -> float:
    connections = await _opened(port, path)
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
    """uvloop's timers have milliseconds: the rest is waited for in naps, with a look at what came between
    them."""
    await asyncio.sleep(max(due - time.perf_counter() - 0.002, 0))
    while time.perf_counter() < due:
        time.sleep(NAP_SECONDS)  # noqa: ASYNC251
        await asyncio.sleep(0)


async def _open(
    port: int, path: str, reviews: Sequence[bytes], rate: float, chance: random.Random
) -> list[float]:
    free: asyncio.Queue[_Connection] = asyncio.Queue()
    for connection in await _opened(port, path):
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
