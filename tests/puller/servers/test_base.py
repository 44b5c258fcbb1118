"""Calls to a model server, against bytes that a server may send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from puller.servers.base import HttpServer, Timeouts
from tests.puller.errors import refused
from tests.puller.fakes import until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LONG = b"x" * 70_000


class Lines:
    """A server that answers each request with the next of its answers; `None` ends the connection."""

    def __init__(self) -> None:
        self.answers: list[bytes | None] = []
        self.requests: list[bytes] = []
        self.connections = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = b"{}" if b"Content-Length: 2" in head else b""
                assert await reader.readexactly(len(body)) == body
                self.requests.append(head + body)
                answer = self.answers.pop(0)
                if answer is None:
                    break
                writer.write(answer)
                if not self.answers:
                    break
        except asyncio.IncompleteReadError:
            pass
        writer.close()


@pytest.fixture
async def lines() -> AsyncIterator[Lines]:
    made = Lines()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()


@pytest.fixture
async def server(lines: Lines) -> AsyncIterator[HttpServer]:
    made = HttpServer(f"http://127.0.0.1:{lines.port}/base/", Timeouts())
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (OK, 200, b"ok"),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, 200, b"ok"),
        (CHUNKED + b"2;x=y\r\nok\r\n1\r\n!\r\n0\r\nT: x\r\n\r\n", 200, b"ok!"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 70000\r\n\r\n" + LONG, 200, LONG[:65536]),
        (CHUNKED + b"11170\r\n" + LONG + b"\r\n0\r\n\r\n", 200, LONG[:65536]),
        (b"HTTP/1.1 200 OK\r\n\r\n" + LONG, 200, LONG[:65536]),
    ],
)  # fmt: skip
async def test_a_readable_answer(
    lines: Lines, server: HttpServer, answer: bytes, status: int, body: bytes
) -> None:
    lines.answers = [answer]
    assert await server.call("GET", "/x", 60) == (status, body)
    assert lines.requests[0].startswith(b"GET /base/x HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % lines.port)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + LONG + b"\r\n\r\n",
    ],
)
async def test_not_an_answer(lines: Lines, server: HttpServer, answer: bytes | None) -> None:
    lines.answers = [answer]
    with refused("ServerLost"):
        await server.call("GET", "/x", 60)


async def test_a_connection_is_kept_and_one_that_ended_is_not_used(lines: Lines, server: HttpServer) -> None:
    lines.answers = [OK, OK, b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", OK]
    for _ in range(3):
        await server.call("POST", "/load", 60)
    assert lines.connections == 1
    await server.call("POST", "/load", 60)
    assert lines.connections == 2


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_connection_that_ends_as_it_is_used(lines: Lines, server: HttpServer, method: str) -> None:
    """A GET is repeated; a POST may have been carried out."""
    lines.answers = [OK, None, OK]
    await server.call("GET", "/x", 60)
    again: Callable[[], object] = lambda: server.call(method, "/x", 60)  # noqa: E731
    if method == "GET":
        assert await again() == (200, b"ok")  # type: ignore[misc]
        assert len(lines.requests) == 3
    else:
        with refused("ServerLost"):
            await again()  # type: ignore[misc]
        assert len(lines.requests) == 2


async def test_a_cancelled_call_closes_its_connection(lines: Lines, server: HttpServer) -> None:
    lines.answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", OK]
    call = asyncio.create_task(server.call("GET", "/x", 60))
    await until(lambda: lines.requests)
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await server.call("GET", "/x", 60) == (200, b"ok")
    assert lines.connections == 2


async def test_nobody_listens() -> None:
    server = HttpServer("http://127.0.0.1:1", Timeouts())
    with refused("ServerUnavailable", "Connection refused"):
        await server.call("GET", "/x", 60)
    await server.close()


async def test_a_user_in_the_url(lines: Lines) -> None:
    lines.answers = [OK]
    server = HttpServer(f"http://me:p%40ss@127.0.0.1:{lines.port}", Timeouts())
    await server.call("GET", "/x", 60)
    await server.close()
    assert b"Authorization: Basic bWU6cEBzcw==\r\n" in lines.requests[0]
    assert b"Host: 127.0.0.1" in lines.requests[0]


async def test_a_password_in_the_url_is_not_shown() -> None:
    server = HttpServer("http://me:s3cret@127.0.0.1:1", Timeouts())
    with refused("ServerUnavailable", r"^GET http://127\.0\.0\.1:1/x: ") as caught:
        await server.call("GET", "/x", 60)
    await server.close()
    assert "s3cret" not in str(caught.value)
