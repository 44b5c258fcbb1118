"""Plain requests: answered without aiohttp, and as aiohttp would."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final

import pytest

from tests.webhook.server.running import HEAD, Running, serving
from tests.webhook.server.test_connections import BODY, WHOLE, acceptor_of, callers, in_flight, settled
from webhook.admission.answer import Answer, allowed
from webhook.server import admission_server as module
from webhook.server import connections


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAST_HANDSHAKES_SECONDS", 0)
    monkeypatch.setattr(connections, "FRESH_SECONDS", 0.01)


@pytest.fixture
async def at_once() -> AsyncIterator[Running]:
    async with serving() as it:
        yield it


async def test_a_plain_request_never_reaches_aiohttp_and_the_connection_goes_on(at_once: Running) -> None:
    async with callers(at_once, 1) as (caller,):
        for _ in range(3):
            caller.writer.write(WHOLE)
            assert await caller.status() == 200
            head = await caller.reader.readuntil(b"\r\n\r\n")
            assert b"Server:" not in head, "aiohttp writes its name"
            await caller.reader.readexactly(int(head.partition(b"Content-Length: ")[2].split()[0]))
        (connection,) = acceptor_of(at_once)._connections
        assert connection._reader is not None
        assert connection._request_count == 0


async def test_a_plain_request_may_arrive_byte_by_byte(at_once: Running) -> None:
    async with callers(at_once, 1, HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY)) as (caller,):
        await in_flight(acceptor_of(at_once), 1)
        for byte in BODY:
            caller.writer.write(bytes([byte]))
            await caller.writer.drain()
        assert await caller.status() == 200
        (connection,) = acceptor_of(at_once)._connections
        assert connection._reader is not None
        assert connection.since is None


async def test_a_plain_request_that_has_begun_does_not_give_way(
    at_once: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long the machine stops in between, it is not without progress for so long.
    monkeypatch.setattr(connections, "FRESH_SECONDS", 500.0)
    async with callers(at_once, 1, WHOLE[:-5]) as (caller,):
        acceptor = acceptor_of(at_once)
        await in_flight(acceptor, 1)
        (connection,) = acceptor._connections
        connection.used -= 1_000
        assert not acceptor._evict()
        caller.writer.write(WHOLE[-5:])
        assert await caller.status() == 200
        async with asyncio.timeout(30):
            while not acceptor._evict():
                connection.used -= 1_000
                await asyncio.sleep(0.005)


async def test_plain_requests_whose_answers_are_not_taken_in_are_left_to_aiohttp(at_once: Running) -> None:
    """It waits until they are; else they would pile up in memory."""
    big = Answer(allowed(["x" * 100] * 40, {"findings": "y" * 100_000}))
    at_once.answer = lambda _, __: big
    async with callers(at_once, 1) as (caller,):
        await settled(acceptor_of(at_once), 1)
        (connection,) = acceptor_of(at_once)._connections
        async with asyncio.timeout(30):
            while connection._reader is not None:
                caller.writer.write(WHOLE)
                await asyncio.sleep(0.005)
        assert connection.unsent


PLAIN: Final = [b"Host: x", b"Content-Type: application/json", b"Content-Length: %d" % len(BODY)]
ODD_LINES: Final = [
    *PLAIN,
    *(b"Host:x", b"Host : x", b"host: \x80", b"HOST: y", b"Host:"),
    *(
        b"Content-Type: application/json; charset=utf-8",
        b"Content-Type: text/plain",
        b"content-type: application/JSON ",
    ),
    *(b"Content-Length: %d" % (len(BODY) + more) for more in (-1, 1, 10_000)),
    b"Content-Length: 0%d" % len(BODY),
    b"Content-Length: +%d" % len(BODY),
    b"Content-Length: %d, %d" % (len(BODY), len(BODY)),
    *(
        b"Content-Length: 0",
        b"Content-Length: 99999999999999999999",
        b"Content-Length:",
        b"Content-Length: 0x10",
    ),
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity, chunked", b"transfer-encoding : chunked"),
    b"Transfer-Encoding: chunked, identity",
    *(b"\tfolded: yes", b" folded: yes", b"no colon", b": no name", b""),
    *(b"Connection: close", b"Connection: keep-alive", b"Connection: Upgrade", b"Upgrade: h2c"),
    *(
        b"Content-Encoding: gzip",
        b"Content-Encoding: identity",
        b"Expect: magic",
        b"Trailer: X",
        b"TE: trailers",
    ),
    *(b"Accept: */*", b"Accept:  a  ", b"User-Agent: x", b"X-Other: y", b"Accept: \xff", b"Accept: \x00"),
    *(b"Accept: a\rContent-Length: 1", b"Accept: a\nContent-Length: 1", b"Accept: " + b"y" * 10_000),
]
ODD_FIRSTS: Final = [
    *(b"POST /validate?timeout=1s HTTP/1.1", b"POST /validate?timeout=1s&a=b HTTP/1.1"),
    *(b"POST /validate?timeout=%31s HTTP/1.1", b"POST //validate HTTP/1.1", b"POST /nothing HTTP/1.1"),
    *(b"POST http://x/validate HTTP/1.1", b"POST /validate HTTP/1.0", b"POST  /validate HTTP/1.1"),
    *(b"POST /validate HTTP/1.1 ", b"post /validate HTTP/1.1", b"GET /validate HTTP/1.1", b"POST /validate"),
    *(
        b"POST /validate#a HTTP/1.1",
        b"HEAD /healthz HTTP/1.1",
        b"POST /Validate HTTP/1.1",
        b"PUT /validate HTTP/1.1",
    ),
]
CHUNKED: Final = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


def odd_requests() -> Iterator[bytes]:
    """Requests that differ from a plain one in one thing, and the plain one."""
    first, end = b"POST /validate HTTP/1.1", b"\r\n"
    for line in ODD_LINES:
        others = [
            each for each in PLAIN if each.partition(b":")[0].lower() != line.partition(b":")[0].lower()
        ]
        for lines in ([*PLAIN, line], [line, *PLAIN], [line, *others]):
            yield end.join([first, *lines, b"", BODY])
            yield end.join([first, *lines, b"", CHUNKED])
    for odd in ODD_FIRSTS:
        yield end.join([odd, *PLAIN, b"", BODY])
    for odd in (b"\n", b"\r", b"\r\r\n", b"\n\r\n"):
        yield odd.join([first, *PLAIN, b"", BODY])
    for body in (b"", BODY[:-1], BODY + b"x", WHOLE, CHUNKED, b"\r\n" + BODY):
        yield end.join([first, *PLAIN, b"", body])
    yield b"\r\n" + WHOLE


class Wire(asyncio.Transport):
    """A transport whose other end is the test."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.closed = b"", False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def writelines(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        self.written += b"".join(parts)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def get_write_buffer_size(self) -> int:
        return 0


async def said(running: Running, sent: bytes, splits: list[int]) -> tuple[bytes, bool]:
    """What a new connection answers to bytes that come in parts, and whether it is closed then."""
    wire, connection = Wire(), acceptor_of(running)._new_connection()
    connection.connection_made(wire)
    ends = sorted({min(end, len(sent)) for end in splits} | {len(sent)})
    for start, end in itertools.pairwise([0, *ends]):
        if not wire.closed:
            connection.data_received(sent[start:end])
        for _ in range(12):
            await asyncio.sleep(0)
    closed = wire.closed
    connection.connection_lost(None)
    await asyncio.sleep(0)
    return re.sub(rb"(?:Date|Server): [^\r]*\r\n", b"", wire.written), closed


BEHIND: Final = {b"": 3, WHOLE: 4, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n": 1, b"\r\n": 2, b"?": 4}
"""What follows a request, and in how many ways the bytes come in parts."""


async def test_any_bytes_are_answered_as_by_aiohttp_only() -> None:
    other: dict[bytes, object] = {}
    async with serving() as plain, serving(waits=True) as aiohttp:
        for request, (more, cuts) in itertools.product(odd_requests(), BEHIND.items()):
            sent = request + more
            for ends in ([], [10], [100], [40, len(request)])[:cuts]:
                answer = await said(plain, sent, ends)
                # Where rubbish follows a request, what aiohttp answers depends on the parts that came, and
                # it is handed the first ones in one.
                its: list[tuple[bytes, bool]] = []
                while answer not in its and len(its) <= len(ends):
                    its.append(await said(aiohttp, sent, ends[len(its) :]))
                if answer not in its:
                    other[sent] = ends, answer, its
    assert other == {}
