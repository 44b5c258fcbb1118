"""How long an honest review takes next to 1,100 callers that do next to nothing, each on a connection.

A real `chassis serve` over TLS. The slow callers run in another process. They send a byte a second
and connect again as soon as the server ends their connection. The honest caller sends each review on a new
connection, which is the worst case: it waits for a place and shakes hands.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import socket
import ssl
import statistics
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final

from benchmarks.engine import POD, body
from tests.hostile.objects import pod
from tests.hostile.test_served import Chassis, chassis, review
from webhook.server.connections import raise_descriptor_limit

CALLERS: Final = int(os.environ.get("CALLERS", "1100"))
ONLY: Final = os.environ.get("ONLY", "")
"""One of the rounds, such as "all of these"."""
REVIEWS: Final = 20
BOUND_SECONDS: Final = 5.0
"""The timeout of every entry of the manifests."""
SETTLED_SECONDS: Final = 15.0
"""Until all of them are connected."""
PACE_SECONDS: Final = 1.0
_HEAD: Final = b"POST /validate?timeout=30s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
ANSWER: Final = 200_000
"""Bytes of an answer that is not taken in: more than the socket's buffers hold."""


def _large_answer() -> bytes:
    """A review whose answer is as long as its uid, which the answer repeats."""
    sent = review(pod()).replace(b'"uid":"u"', b'"uid":"%s"' % (b"u" * ANSWER))
    return _HEAD + b"Content-Length: %d\r\n\r\n" % len(sent) + sent


@dataclass(frozen=True)
class Slow:
    """A kind of slow caller."""

    first: bytes
    """Sent at once."""
    then: bytes = b""
    """Sent each second."""
    tls: bool = True


KINDS: Final = {
    "no handshake": Slow(b"", tls=False),
    "half a head": Slow(_HEAD[:40], b"x"),
    "a byte of a body": Slow(_HEAD + b"Content-Length: 60000\r\n\r\n{", b" "),
    "the most of a body": Slow(_HEAD + b"Content-Length: 60000\r\n\r\n" + b" " * 59_000, b" "),
    "answers not taken in": Slow(_large_answer(), b"\r\n"),
}


# --- the slow callers ----------------------------------------------------------------------------------


def _attack(port: int, kinds: list[Slow], begun: Event) -> None:
    raise_descriptor_limit()

    async def main() -> None:
        tls = _trusting()
        callers = [
            asyncio.create_task(_caller(kinds[number % len(kinds)], port, tls)) for number in range(CALLERS)
        ]
        await asyncio.sleep(SETTLED_SECONDS)
        begun.set()
        await asyncio.gather(*callers)

    asyncio.run(main())


async def _caller(kind: Slow, port: int, tls: ssl.SSLContext) -> None:
    options: dict[str, Any] = {}
    if kind.tls:
        options = {"ssl": tls, "server_hostname": "x", "ssl_handshake_timeout": 60.0}
    while True:
        with suppress(OSError, TimeoutError):
            raw = socket.socket()
            raw.setblocking(False)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
            reader, writer = await asyncio.open_connection(sock=raw, limit=1024, **options)
            try:
                writer.write(kind.first)
                while not reader.at_eof() and not writer.is_closing():
                    await asyncio.sleep(PACE_SECONDS)
                    writer.write(kind.then)
            finally:
                writer.transport.abort()


# --- the honest one ------------------------------------------------------------------------------------


async def _honest(port: int, tls: ssl.SSLContext) -> float:
    """Seconds from connecting until the answer is there."""
    sent = body(POD)
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, ssl_handshake_timeout=60)
    writer.write(_HEAD + b"Content-Length: %d\r\n\r\n" % len(sent) + sent)
    line = await reader.readline()
    taken = time.perf_counter() - began
    writer.transport.abort()
    assert line.startswith(b"HTTP/1.1 200"), line
    return taken


def _trusting() -> ssl.SSLContext:
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return tls


async def _measured(it: Chassis, kinds: list[Slow]) -> tuple[list[float], float, int]:
    """How long the reviews took, CPU seconds of the server in a second meanwhile, and how many gave way."""
    context = multiprocessing.get_context("fork")
    begun = context.Event()
    attack = context.Process(target=_attack, args=(it.port, kinds, begun), daemon=True)
    if kinds:
        attack.start()
        await asyncio.to_thread(begun.wait)
    cpu, began = it.seconds(), time.perf_counter()
    taken, tls = [], _trusting()
    for _ in range(REVIEWS):
        taken.append(await _honest(it.port, tls))
        await asyncio.sleep(0.2)
    cpu = (it.seconds() - cpu) / (time.perf_counter() - began)
    if kinds:
        assert attack.is_alive()
        attack.kill()
        await asyncio.to_thread(attack.join)
    gave_way = re.search(rb'chassis_refused_total{reason="too-many-connections"} (\d+)', await it.metrics())
    return taken, cpu, int(gave_way[1]) if gave_way else 0


async def _main() -> None:
    rounds: dict[str, list[Slow]] = {"nobody": [], "all of these": list(KINDS.values())}
    rounds |= {name: [kind] for name, kind in KINDS.items()}
    if ONLY:
        rounds = {ONLY: rounds[ONLY]}
    print(f"An honest review on a new connection next to {CALLERS:,} slow callers; {REVIEWS} reviews each")
    late = False
    for name, kinds in rounds.items():
        with tempfile.TemporaryDirectory() as policy:
            async with chassis(Path(policy)) as it:
                taken, cpu, gave_way = await _measured(it, kinds)
        late |= max(taken) > BOUND_SECONDS
        print(
            f"  {name:<22} median {statistics.median(taken):5.2f} s   slowest {max(taken):5.2f} s"
            f"   server {cpu:4.2f} CPU s/s"
            f"   {gave_way:,} gave way",
            flush=True,
        )
    if late:
        raise SystemExit(f"later than {BOUND_SECONDS:g} s")


if __name__ == "__main__":
    asyncio.run(_main())
