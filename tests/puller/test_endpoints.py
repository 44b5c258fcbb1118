"""The sidecar's own port, byte by byte: what a kubelet, a scraper and anybody else may send."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import orjson
import pytest

from puller import endpoints, status
from tests.puller.conftest import World
from tests.puller.fakes import until

CHUNKED = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
async def port(world: World) -> AsyncIterator[endpoints.Port]:
    world.config.write({"m": world.put("m", "M")})
    listening = await endpoints.listen(world.start(), "127.0.0.1", 0)
    await until(world.ready)
    yield listening
    await listening.close()


async def said(port: endpoints.Port, request: bytes) -> bytes:
    """Everything that comes until the connection ends."""
    reader, writer = await asyncio.open_connection(*port.address)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200, b"ok\n"),
        (b"GET /readyz?verbose HTTP/1.1\r\nHost: x\r\nconnection: Close\r\n\r\n", 200, b"ok\n"),
        (b"GET /readyz HTTP/1.0\r\n\r\n", 200, b"ok\n"),
        (b"HEAD /readyz HTTP/1.0\r\n\r\n", 200, b""),
        (b"POST /readyz HTTP/1.0\r\n\r\n", 405, b"only GET\n"),
        (b"GET /nothing HTTP/1.0\r\n\r\n", 404, b"there are /healthz, /readyz, /v1/models and /metrics\n"),
        (b"GET / HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello", 400, b"a body is not allowed\n"),
        (CHUNKED + b"1\r\nx\r\n0\r\n\r\n", 400, None),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400, None),
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n", 400, None),
    ],
)
async def test_each_request_is_answered(
    port: endpoints.Port, capfd: pytest.CaptureFixture[str], request_: bytes, status: int, body: bytes | None
) -> None:
    """`body` None: any text."""
    capfd.readouterr()
    head, _, got = (await said(port, request_)).partition(b"\r\n\r\n")
    assert re.match(rb"HTTP/1\.[01] %d " % status, head)
    assert body in (None, got)
    assert "Traceback" not in capfd.readouterr().err


async def test_models_are_filtered_by_state_and_number(
    port: endpoints.Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = {"a": "Loaded", "b": "Pending", "c": "Failed", "d": "Failed"}
    document = {
        "models": [{"name": name, "state": state} for name, state in states.items()],
        "counts": {"Failed": 2, "Loaded": 1, "Pending": 1},
    }
    monkeypatch.setattr(status.PullerStatus, "document", lambda *_: document)

    async def names(query: str) -> str:
        got = await said(port, f"GET /v1/models{query} HTTP/1.0\r\n\r\n".encode())
        found = orjson.loads(got.partition(b"\r\n\r\n")[2])
        assert found["counts"] == document["counts"]
        return "".join(model["name"] for model in found["models"])

    assert await names("") == "abcd"
    assert await names("?loaded=false") == "cdb"
    assert await names("?loaded=false&limit=1") == "c"
    assert await names("?limit=2") == "ab"
    assert await names("?limit=x&loaded=maybe&more=1") == "abcd"


async def test_a_bug_fails_only_its_request(port: endpoints.Port, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(status.PullerStatus, "document", fail)
    assert b" 500 " in await said(port, b"GET /v1/models HTTP/1.0\r\n\r\n")
    assert b" 200 " in await said(port, b"GET /healthz HTTP/1.0\r\n\r\n")


async def test_idle_connections_time_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "_IDLE_TIMEOUT", 0.05)
    world.config.write({})
    port = await endpoints.listen(world.start(), "127.0.0.1", 0)
    assert b"200 OK" in await said(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    await port.close()


async def test_closing_the_port_closes_idle_connections(port: endpoints.Port) -> None:
    reader, writer = await asyncio.open_connection(*port.address)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await reader.readuntil(b"ok\n")
    await port.close()
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()


async def test_idle_clients_cannot_lock_others_out(
    port: endpoints.Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "_MAX_CONNECTIONS", 3)
    held = [await asyncio.open_connection(*port.address) for _ in range(3)]
    await until(lambda: len(port.server.connections) == 3)
    assert b"200 OK" in await said(port, b"GET /healthz HTTP/1.0\r\n\r\n")
    reader, _ = held[0]
    assert await asyncio.wait_for(reader.read(), 60) == b"", "the oldest gave way"
    for reader, writer in held[1:]:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"\r\n"), 60)
    for _, writer in held:
        writer.close()
        await writer.wait_closed()
