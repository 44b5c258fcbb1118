"""Pullers' pages as a tenant may make them: of any size, any form, any speed, and leading anywhere."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from policies.kube.json import Json
from webhook.observed import status_pages
from webhook.observed.status_pages import (
    LARGEST,
    LISTED,
    NoStatus,
    Page,
    Unloaded,
    is_pod_address,
    read,
    status_client,
)


def entry(name: str, state: str = "Failed", reason: str = "NotFound", message: str = "nothing there") -> Json:
    return {"name": name, "state": state, "reason": reason, "message": message, "attempts": 3}


def encoded(*entries: object, **more: object) -> bytes:
    return json.dumps({"models": entries, **more}).encode()


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def page(*pieces: bytes, then: float = 0) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A port that answers every request with these bytes, and the requests that came."""
    came: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(await reader.readuntil(b"\r\n\r\n"))
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            await asyncio.sleep(then)
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], came


async def asked(port: int) -> Page:
    async with status_client(1, lambda _: True) as ask:
        return await ask("127.0.0.1", port)


async def test_a_page_is_read() -> None:
    body = encoded(
        entry("b"), entry("a", "Loading", "", ""), counts={"Loaded": 38, "Failed": 1, "Loading": 1}
    )
    async with page(answer(body)) as (port, came):
        found = await asked(port)
    unloaded = Unloaded("b", "Failed", "NotFound", "nothing there"), Unloaded("a", "Loading", "", "")
    assert found == Page(40, 38, unloaded)
    assert found.complete
    (request,) = came
    assert request.startswith(b"GET /v1/models?loaded=false&limit=50 HTTP/1.1\r\n")
    assert b"authorization" not in request.lower()
    assert b"cookie" not in request.lower()


async def test_a_puller_of_the_first_release_lists_all_models() -> None:
    async with page(answer(encoded(entry("a"), entry("b", "Loaded")))) as (port, _):
        found = await asked(port)
    assert (found.total, found.loaded, [each.name for each in found.unloaded]) == (2, 1, ["a"])


@pytest.mark.parametrize(
    "pieces",
    [
        (answer(encoded(entry("a")) + b" " * LARGEST),),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n", *[b" " * 65536] * 8),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            *[b"999\r\n" + b" " * 2457 + b"\r\n"] * 200,
        ),
        (b"HTTP/1.1 200 OK\r\n", *[b"X: " + b"y" * 8000 + b"\r\n"] * 64),
        (answer(gzip.compress(encoded(entry("a")) + b" " * 10_000_000), "200 OK", "Content-Encoding: gzip"),),
        (answer(b"", "302 Found", "Location: http://127.0.0.1:1/v1/models"),),
        (answer(encoded(entry("a")), "404 Not Found"),),
        (answer(b"[" * 100_000),),
        (answer(b"[]"),),
        (answer(b'{"models": 1}'),),
        (answer(b"\xff"),),
        (b"\x16\x03\x01\x02\x00",),
        (),
    ],
    ids=[
        "long", "longer than it is", "endless chunks", "endless headers", "a bomb", "redirect", "not found",
        "deep", "a list", "no models", "no text", "TLS", "nothing",
    ],
)  # fmt: skip
async def test_a_hostile_page_is_no_answer(pieces: tuple[bytes, ...]) -> None:
    async with page(*pieces) as (port, came):
        with pytest.raises(NoStatus):
            await asked(port)
    # aiohttp repeats a GET once whose connection broke.
    assert 1 <= len(came) <= 2


async def test_a_slow_page_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_pages, "SECONDS", 0.1)
    async with page(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", b"{", then=30) as (port, _):
        with pytest.raises(NoStatus):
            await asked(port)


async def test_only_the_address_of_a_pod_is_asked() -> None:
    async with status_client(1) as ask:
        for address in ("127.0.0.1", "::1", "169.254.169.254", "fe80::1", "0.0.0.0", "::", "224.0.0.1", "x"):
            with pytest.raises(NoStatus, match="not a pod's"):
                await ask(address, 80)
    assert not is_pod_address("::ffff:127.0.0.1")
    assert not is_pod_address("fe80::1%eth0")
    assert is_pod_address("10.1.2.3")
    assert is_pod_address("fd00::7")


def test_texts_are_limited_and_printable() -> None:
    many = [entry(f"m{number}" + "x" * 300, message="\x1b[31m" + "y" * 9_000) for number in range(1000)]
    found = read(encoded(*many, counts={"Failed": 10**15, "Loaded": -5, "Pending": "x"}))
    assert len(found.unloaded) == LISTED
    assert found.total <= 3_000_000
    assert not found.complete
    assert all(len(each.name) <= 253 and len(each.message) <= 300 for each in found.unloaded)
    assert all(each.message.isprintable() for each in found.unloaded)


def test_failed_models_come_first() -> None:
    found = read(encoded(*[entry(f"p{number}", "Pending") for number in range(LISTED)], entry("z")))
    assert found.unloaded[0].name == "z"


@pytest.mark.parametrize("odd", [None, 1, "x", [], {"name": 5}, {"name": ""}, {"state": "Failed"}])
def test_an_entry_without_a_name_is_passed_over(odd: object) -> None:
    assert [each.name for each in read(encoded(odd, entry("a"))).unloaded] == ["a"]
