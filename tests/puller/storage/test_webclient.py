"""The connections themselves: kept, lost, given up, through proxies."""

from __future__ import annotations

import asyncio
import ssl
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from yarl import URL

from puller.storage import webclient
from puller.storage.base import Limits, StorageError
from puller.storage.webclient import WebClient, body
from tests.puller.storage.test_http import self_signed
from tests.steady import undisturbed

LIMITS = Limits()
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))


@asynccontextmanager
async def listening(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server of these connections; its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        try:
            await handler(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    serving: list[asyncio.Task[None] | None] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*filter(None, serving), return_exceptions=True)


async def content(client: WebClient, url: str) -> bytes:
    async with client, client.get(URL(url), {}) as response:
        assert response.status == 200
        return b"".join([piece async for piece in body(response, 1)])


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def test_a_connection_that_the_server_closed_meanwhile_is_replaced() -> None:
    connections = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)

    client = WebClient(LIMITS, linger=60)
    async with listening(once) as port:
        for _ in range(3):
            assert await content(client, f"http://127.0.0.1:{port}/") == b"ok"
        client.close()
    assert connections == 3


async def test_a_connection_that_dies_of_the_next_request_costs_no_attempt() -> None:
    """The server closes it just as the request comes: no check of the socket could have shown it."""
    connections = 0

    async def twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")

    client = WebClient(LIMITS, linger=60)
    async with listening(twice) as port:
        for _ in range(2):
            assert await content(client, f"http://127.0.0.1:{port}/") == b"ok"
        client.close()
    assert connections == 2


@pytest.mark.parametrize(
    "extra", [b"Connection: close\r\n", b"Transfer-Encoding: chunked\r\n"], ids=["close", "unread"]
)
async def test_a_connection_is_kept_only_where_all_of_an_answer_was_read(extra: bytes) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n" + extra + b"Content-Length: 2\r\n\r\n2\r\nok")

    client = WebClient(LIMITS, linger=60)
    async with listening(serve) as port:
        for _ in range(2):
            async with client, client.get(URL(f"http://127.0.0.1:{port}/"), {}) as response:
                assert response.status == 200
        client.close()
    assert connections == 2


async def test_an_idle_connection_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)

    client = WebClient(LIMITS, linger=60)
    async with listening(serve) as port:
        for kept, expected in ((15.0, 1), (15.0, 1), (0.0, 2)):
            monkeypatch.setattr(webclient, "_MAX_IDLE", kept)
            await content(client, f"http://127.0.0.1:{port}/")
            assert connections == expected
        client.close()


async def test_a_body_that_breaks_at_its_first_byte_leaves_the_head() -> None:
    """The caller continues from there, for example for a range."""

    async def headless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")

    client = WebClient(LIMITS)
    async with (
        listening(headless) as port,
        client,
        client.get(URL(f"http://127.0.0.1:{port}/"), {}) as response,
    ):
        assert response.status == 200
        with pytest.raises(StorageError, match="broke"):
            [piece async for piece in body(response, 1)]


@pytest.mark.parametrize("body", [b"", b"bye"])
async def test_a_redirect_does_not_cost_the_connection(body: bytes) -> None:
    connections = 0

    async def hub(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            there = b"HTTP/1.1 302 Found\r\nLocation: /there\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            writer.write(OK if head.startswith(b"GET /there ") else there)

    client = WebClient(LIMITS)
    async with listening(hub) as port:
        assert await content(client, f"http://127.0.0.1:{port}/") == b"ok"
    assert connections == 1


async def test_an_interim_answer_is_passed_over() -> None:
    async def hints(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + OK)

    async with listening(hints) as port:
        assert await content(WebClient(LIMITS), f"http://127.0.0.1:{port}/") == b"ok"


_HINT = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"


async def test_interim_answers_without_end_are_not_read_without_end() -> None:
    sent = 0

    async def hints(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        while sent < 10_000:
            writer.write(_HINT)
            sent += 1
            await writer.drain()
        writer.write(OK)

    async with listening(hints) as port:
        with pytest.raises(StorageError) as caught:
            await content(WebClient(LIMITS), f"http://127.0.0.1:{port}/")
    assert (caught.value.reason, caught.value.transient) == ("StorageUnavailable", True)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tunnel"])
@pytest.mark.parametrize("begins", [_HINT, b"HTTP/1.1 200 OK\r\n", b"HT"])
async def test_a_head_that_comes_byte_by_byte_is_given_up(
    monkeypatch: pytest.MonkeyPatch, begins: bytes, tls: bool
) -> None:
    """Each byte comes well within the stall timeout: only the time for the whole head ends it."""
    refused = tls and begins == _HINT  # no proxy answers CONNECT so
    limits = Limits(stall_timeout=3600.0, connect_timeout=3600.0, head_timeout=60.0 if refused else 0.3)

    async def drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begins)
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with listening(drips) as port:
        url = f"http://127.0.0.1:{port}/"
        if tls:
            monkeypatch.setenv("https_proxy", url)
            url = "https://store.example/"
        with pytest.raises(StorageError) as caught:
            async with asyncio.timeout(60):
                await content(WebClient(limits), url)
    assert caught.value.reason == ("StorageUnavailable" if refused else "StorageTimeout")


async def test_a_body_may_take_longer_than_a_head() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n")
        for _ in range(20):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with listening(slow) as port:
        limits = Limits(stall_timeout=3600.0, head_timeout=0.2)

        async def attempt() -> None:
            assert await content(WebClient(limits), f"http://127.0.0.1:{port}/") == b"x" * 20

        await undisturbed(0.1, attempt)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\nx"])
async def test_giving_up_does_not_wait(head: bytes) -> None:
    """The thread that waits for a silent server ends at once, long before the stall timeout."""
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        asked.set()
        await reader.read()

    client = WebClient(Limits(stall_timeout=3600.0))
    async with listening(silent) as port:
        task = asyncio.create_task(content(client, f"http://127.0.0.1:{port}/"))
        await asked.wait()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(60):
                await task


async def test_a_name_that_takes_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()
    blocked = threading.Event()

    async def never(*_: object, **__: object) -> None:
        asked.set()
        await asyncio.to_thread(blocked.wait)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    task = asyncio.create_task(content(WebClient(LIMITS), "http://store.example/"))
    await asked.wait()
    task.cancel()
    try:
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not blocked.is_set()
    finally:
        blocked.set()


# --- proxies and passwords ---------------------------------------------------------------------------


async def test_plain_requests_go_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[str] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(OK)

    async with listening(proxy) as port:
        monkeypatch.setenv("http_proxy", f"http://me:secret@127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert await content(WebClient(LIMITS), "http://you:word@store.example/a%20b?c=d") == b"ok"
        with pytest.raises(StorageError):
            await content(WebClient(LIMITS), "http://127.0.0.1:1/")
    (head,) = heads
    assert head.startswith("GET http://store.example/a%20b?c=d HTTP/1.1\r\n")
    assert "Host: store.example\r\n" in head
    assert f"Proxy-Authorization: Basic {b64encode(b'me:secret').decode()}\r\n" in head
    assert f"\r\nAuthorization: Basic {b64encode(b'you:word').decode()}\r\n" in head


async def test_tls_goes_through_a_tunnel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    heads: list[str] = []

    async def store(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(OK)

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        there, back = await asyncio.open_connection("127.0.0.1", tls)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def copy(one: asyncio.StreamReader, other: asyncio.StreamWriter) -> None:
            try:
                while block := await one.read(65536):
                    other.write(block)
            finally:
                other.close()

        await asyncio.gather(copy(reader, back), copy(there, writer), return_exceptions=True)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(self_signed(tmp_path))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "tls.pem"))
    async with listening(store, context) as tls, listening(proxy) as port:
        monkeypatch.setenv("https_proxy", f"http://me:secret@127.0.0.1:{port}")
        assert await content(WebClient(LIMITS), f"https://127.0.0.1:{tls}/m") == b"ok"
    connect, head = heads
    assert connect.startswith(f"CONNECT 127.0.0.1:{tls} HTTP/1.")
    assert "Proxy-Authorization: Basic" in connect
    assert head.startswith("GET /m HTTP/1.1\r\n")
    assert "Proxy-Authorization" not in head


async def test_a_proxys_refusal_is_reported_without_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 s3cret\r\n\r\n")

    async with listening(proxy) as port:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        with pytest.raises(StorageError) as caught:
            await content(WebClient(LIMITS), "https://store.example/m")
    assert caught.value.reason == "StorageUnavailable"
    assert caught.value.transient
    assert "s3cret" not in str(caught.value)


async def test_a_proxy_at_a_blocked_address_is_not_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://169.254.169.254:80")
    with pytest.raises(StorageError) as caught:
        await content(WebClient(LIMITS), "http://store.example/m")
    assert caught.value.reason == "AddressBlocked"


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "2852039166",
        "0xA9FEA9FE",
        "0xa9.0376.43518",
        "0251.0376.0251.0376",
        "0169.0254.0169.0254",
        "169.16689662",
        "169.254.169.254.",
        "\uff11\uff16\uff19.254.169.254",
        "169\u3002254\u3002169\u3002254",
        "[fe80::1]",
        "[64:ff9b:1:a9fe:a9:fe00::]",
        "metadata.google.internal",
        "Metadata.Google.Internal.",
    ],
)
@pytest.mark.parametrize("redirected", [False, True])
async def test_no_proxy_is_asked_for_a_blocked_address_however_it_is_written(
    monkeypatch: pytest.MonkeyPatch, host: str, scheme: str, redirected: bool
) -> None:
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b" http://store.example/" in head:
            there = f"{scheme}://{host}/latest".encode()
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % there)
        else:
            asked.append(head)
            writer.write(OK)

    async with listening(proxy) as port:
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        url = "http://store.example/" if redirected else f"{scheme}://{host}/latest"
        with pytest.raises(StorageError) as caught:
            await content(WebClient(LIMITS), url)
    assert asked == []
    if host.isascii():  # others may be refused as no sound address
        assert caught.value.reason == "AddressBlocked"


@pytest.mark.parametrize(
    "host", ["store.example", "10.0.0.1", "169.2540", "0x", "1.2.3.4.5", "12345678901234", "08.0.0.1"]
)
async def test_a_proxy_is_asked_for_any_other_host(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)

    async with listening(proxy) as port:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        assert await content(WebClient(LIMITS), f"http://{host}/m") == b"ok"


async def test_a_password_may_be_in_netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    heads: list[str] = []

    async def store(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(OK)

    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with listening(store) as port:
        await content(WebClient(LIMITS), f"http://127.0.0.1:{port}/m")
    assert f"Authorization: Basic {b64encode(b'me:secret').decode()}\r\n" in heads[0]


async def test_a_store_that_is_asked_by_tls_and_speaks_none() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(OK)

    async with listening(plain) as port:
        with pytest.raises(StorageError, match="does not support TLS"):
            await content(WebClient(LIMITS), f"https://127.0.0.1:{port}/m")
