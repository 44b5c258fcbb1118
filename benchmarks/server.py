"""The cost of the whole HTTPS server compared with a trivial aiohttp handler under the same TLS, in the same
run.

It is also compared with a protocol that reads no HTTP and always gives one answer: this is the cost of TLS
and the event loop, the lower limit for any server. All run in separate processes and are called over
keep-alive connections as an API server does. A noisy machine affects the server's CPU time per request least:
requests a second and latencies include the client, which shares the machine.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TYPE_CHECKING, cast

import uvloop
from aiohttp import web

from benchmarks.engine import POD, body
from policies.core.facts import NoCluster
from webhook import fast_path
from webhook.config.source import LivePolicy
from webhook.fast_path.memo import Memo
from webhook.server import endpoints, log, pki
from webhook.server import tls_reload as certs
from webhook.server.admission_server import AdmissionServer, Readiness, listen
from webhook.server.connections import FastPath
from webhook.server.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECTIONS = 25
"""What an API server keeps open to one webhook when it is idle."""
ROUNDS, SECONDS = 3, 1.5
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Measured:
    """One round: requests a second, latencies and the server's CPU time of one request, in seconds."""

    rate: float
    median: float
    slowest_percent: float
    cpu: float


# --- servers -------------------------------------------------------------------------------------------


async def _chassis(listener: socket.socket, tls: ssl.SSLContext) -> None:
    metrics = Metrics(["Pod"])
    policy = LivePolicy(metrics)
    policy.offer({}, "benchmark")
    answering = endpoints.endpoints(policy, NoCluster(), memo=Memo(count=metrics.memo))
    server = AdmissionServer(
        answering, endpoints.on_error(policy), metrics, Readiness(str), fast_path=cast(FastPath, fast_path)
    )
    await server.start(listener, lambda: tls)


class _Echo(asyncio.Protocol):
    """Answers where as many bytes have come as the one request has that is sent."""

    def __init__(self) -> None:
        self._whole, self._come = len(_request("/floor")), 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._come += len(data)
        if self._come == self._whole:
            self._come = 0
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


async def _floor(listener: socket.socket, tls: ssl.SSLContext) -> None:
    await asyncio.get_running_loop().create_server(_Echo, sock=listener, ssl=tls)


async def _trivial(listener: socket.socket, tls: ssl.SSLContext) -> None:
    async def handle(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=b"{}", content_type="application/json")

    app = web.Application()
    app.router.add_post("/trivial", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.SockSite(runner, listener, ssl_context=tls).start()


def _serve(start: Callable[..., Awaitable[None]], told: Connection, stop: Event) -> None:
    async def main() -> None:
        listener = listen("127.0.0.1", 0)
        serving = certs.ServingCertificate()
        serving.install(pki.issue(["127.0.0.1"], datetime.now(UTC)))
        await start(listener, serving.context)
        told.send(listener.getsockname()[1])
        await asyncio.to_thread(stop.wait)

    with (
        Path(os.devnull).open("w") as nowhere,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        log.configure("info", "json", nowhere)  # the cost of a line a change, as in a pod
        runner.run(main())


@contextmanager
def _running(start: Callable[..., Awaitable[None]]) -> Iterator[tuple[int, int]]:
    """A server in another process: its port and its process id."""
    context = multiprocessing.get_context("fork")  # before this process has threads or a loop
    ours, theirs = context.Pipe()
    stop = context.Event()
    child = context.Process(target=_serve, args=(start, theirs, stop), daemon=True)
    child.start()
    assert child.pid is not None
    try:
        yield ours.recv(), child.pid
    finally:
        stop.set()
        child.join()


# --- the client ----------------------------------------------------------------------------------------


def _request(path: str) -> bytes:
    review = body(POD)
    head = (
        f"POST {path}?timeout=5s HTTP/1.1\r\nHost: mlchassis.mlchassis-system.svc\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(review)}\r\n\r\n"
    )
    return head.encode() + review


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return await asyncio.open_connection("127.0.0.1", port, ssl=tls)


async def _call(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    request: bytes,
    until: float,
    latencies: list[float],
) -> None:
    while (start := time.perf_counter()) < until:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        latencies.append(time.perf_counter() - start)
    writer.close()
    await writer.wait_closed()


async def _load(port: int, request: bytes) -> tuple[list[float], float]:
    latencies: list[float] = []
    connections = [await _connect(port) for _ in range(CONNECTIONS)]
    start = time.perf_counter()
    await asyncio.gather(*(_call(*pair, request, start + SECONDS, latencies) for pair in connections))
    return sorted(latencies), time.perf_counter() - start


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _measure(port: int, pid: int, path: str) -> Measured:
    before = _cpu(pid)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        latencies, elapsed = runner.run(_load(port, _request(path)))
    count = len(latencies)
    return Measured(
        count / elapsed, latencies[count // 2], latencies[count * 99 // 100], (_cpu(pid) - before) / count
    )


def main() -> None:
    results: dict[str, Measured] = {}
    with _running(_floor) as floor, _running(_trivial) as trivial, _running(_chassis) as chassis:
        targets = {
            "/floor": floor,
            "/trivial": trivial,
            "/mutate": chassis,
            "/validate": chassis,
            "/name": chassis,
        }
        for _ in range(ROUNDS):
            for path, server in targets.items():
                measured = _measure(*server, path)
                if path not in results or measured.cpu < results[path].cpu:
                    results[path] = measured
    size = len(body(POD))
    print(f"HTTPS, {CONNECTIONS} connections, a review of {size} bytes, one server process, best of {ROUNDS}")
    base = results["/trivial"]
    for path, it in results.items():
        print(
            f"  {path:<10} {it.rate:>8.0f} requests/s ({it.rate / base.rate:.2f} x)"
            f"   p50 {it.median * 1e3:>6.2f} ms   p99 {it.slowest_percent * 1e3:>6.2f} ms"
            f"   CPU {it.cpu * 1e6:>6.0f} µs ({it.cpu / base.cpu:.2f} x)"
        )


if __name__ == "__main__":
    main()
