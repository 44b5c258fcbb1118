"""The connections themselves: kept, lost, given up, through proxies."""

from __future__ import annotations

import asyncio
import ssl
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from yarl import URL

from puller.storage import webclient
from puller.storage.base import Limits, StorageError
from puller.storage.webclient import WebClient, body
from tests.puller.errors import refused
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
async def listening(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server that handles each connection; its URL."""

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
        yield f"http{'s' if context else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.gather(*filter(None, serving), return_exceptions=True)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HINT = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"


@dataclass
class Answers:
    """A handler that sends `answer` for each request. It sends only `limit` responses on each connection and
    closes it then, or with `lost`, after another request."""

    answer: bytes | Callable[[str], bytes] = OK
    limit: int = 1000
    lost: bool = False
    heads: list[str] = field(default_factory=list)
    connections: int = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        for _ in range(self.limit):
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(self.answer if isinstance(self.answer, bytes) else self.answer(self.heads[-1]))
        if self.lost:
            await reader.readuntil(b"\r\n\r\n")


async def content(client: WebClient, url: str) -> bytes:
    async with client, client.get(URL(url), {}) as response:
        assert response.status == 200
        return b"".join([chunk async for chunk in body(response, 1)])


@pytest.mark.parametrize("lost", [False, True])
async def test_a_connection_that_the_server_closed_is_replaced(lost: bool) -> None:
    """With `lost`, the server closes it just as the request comes: no check of the socket can show that."""
    answers = Answers(limit=1, lost=lost)
    client = WebClient(LIMITS, linger=60)
    async with listening(answers) as url:
        for _ in range(3):
            assert await content(client, url) == b"ok"
        await client.close()
    assert answers.connections == 3


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok",
    ],
    ids=["close", "unread"],
)
async def test_a_connection_is_kept_only_after_a_complete_response(answer: bytes) -> None:
    answers = Answers(answer)
    client = WebClient(LIMITS, linger=60)
    async with listening(answers) as url:
        for _ in range(2):
            async with client, client.get(URL(url), {}) as response:
                assert response.status == 200
        await client.close()
    assert answers.connections == 2


async def test_idle_connections_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    for max_idle, expected in ((15.0, 1), (0.0, 3)):
        monkeypatch.setattr(webclient, "_MAX_IDLE", max_idle)
        answers = Answers()
        client = WebClient(LIMITS, linger=60)
        async with listening(answers) as url:
            for _ in range(3):
                await content(client, url)
            await client.close()
        assert answers.connections == expected


async def test_a_body_may_break_after_the_head() -> None:
    """The caller resumes from there, for example with a range."""
    answers = Answers(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", limit=1)
    client = WebClient(LIMITS)
    async with listening(answers) as url, client, client.get(URL(url), {}) as response:
        assert response.status == 200
        with pytest.raises(StorageError, match="broke"):
            [chunk async for chunk in body(response, 1)]


@pytest.mark.parametrize("text", [b"", b"bye"])
async def test_a_redirect_does_not_cost_the_connection(text: bytes) -> None:
    redirect = b"HTTP/1.1 302 Found\r\nLocation: /there\r\nContent-Length: %d\r\n\r\n" % len(text) + text
    answers = Answers(lambda head: OK if head.startswith("GET /there ") else redirect)
    async with listening(answers) as url:
        assert await content(WebClient(LIMITS), url) == b"ok"
    assert answers.connections == 1


async def test_interim_responses_are_skipped() -> None:
    async with listening(Answers(HINT + b"HTTP/1.1 100 Continue\r\n\r\n" + OK)) as url:
        assert await content(WebClient(LIMITS), url) == b"ok"


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tunnel"])
@pytest.mark.parametrize(("begins", "goes_on"), [(b"", HINT), (b"HTTP/1.1 200 OK\r\nX: ", b"x")])
async def test_a_slow_head_times_out(
    monkeypatch: pytest.MonkeyPatch, begins: bytes, goes_on: bytes, tls: bool
) -> None:
    """Bytes come well within the stall timeout: only the time for the whole head ends it."""
    limits = Limits(stall_timeout=3600.0, connect_timeout=3600.0, head_timeout=0.3)

    async def drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begins)
        while True:
            writer.write(goes_on)
            await writer.drain()
            await asyncio.sleep(0.01)

    async with listening(drips) as url:
        if tls:
            monkeypatch.setenv("https_proxy", url)
            url = "https://store.example/"
        with refused("StorageTimeout"):
            async with asyncio.timeout(60):
                await content(WebClient(limits), url)


async def test_a_body_may_take_longer_than_a_head() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n")
        for _ in range(20):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with listening(slow) as url:
        limits = Limits(stall_timeout=3600.0, head_timeout=0.2)

        async def attempt() -> None:
            assert await content(WebClient(limits), url) == b"x" * 20

        await undisturbed(0.1, attempt)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\nx"])
async def test_cancelling_does_not_wait_for_the_server(head: bytes) -> None:
    """The thread that waits for a silent server ends at once, long before the stall timeout."""
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        asked.set()
        await reader.read()

    client = WebClient(Limits(stall_timeout=3600.0))
    async with listening(silent) as url:
        task = asyncio.create_task(content(client, url))
        await asked.wait()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(60):
                await task


async def test_cancelling_does_not_wait_for_name_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
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
    proxy = Answers()
    async with listening(proxy) as url:
        monkeypatch.setenv("http_proxy", url.replace("://", "://me:secret@"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert await content(WebClient(LIMITS), "http://you:word@store.example/a%20b?c=d") == b"ok"
        with pytest.raises(StorageError):
            await content(WebClient(LIMITS), "http://127.0.0.1:1/")
    (head,) = proxy.heads
    assert head.startswith("GET http://store.example/a%20b?c=d HTTP/1.1\r\n")
    assert "Host: store.example\r\n" in head
    assert f"Proxy-Authorization: Basic {b64encode(b'me:secret').decode()}\r\n" in head
    assert f"\r\nAuthorization: Basic {b64encode(b'you:word').decode()}\r\n" in head


async def test_tls_goes_through_a_tunnel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = Answers()
    connects: list[str] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connects.append((await reader.readuntil(b"\r\n\r\n")).decode())
        there, back = await asyncio.open_connection("127.0.0.1", URL(store_url).port)
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
    async with listening(store, context) as store_url, listening(proxy) as url:
        monkeypatch.setenv("https_proxy", url.replace("://", "://me:secret@"))
        assert await content(WebClient(LIMITS), f"{store_url}/m") == b"ok"
    assert connects[0].startswith(f"CONNECT {store_url.removeprefix('https://')} HTTP/1.")
    assert "Proxy-Authorization: Basic" in connects[0]
    assert store.heads[0].startswith("GET /m HTTP/1.1\r\n")
    assert "Proxy-Authorization" not in store.heads[0]


async def test_a_proxys_refusal_is_reported_without_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(Answers(b"HTTP/1.1 403 s3cret\r\n\r\n", limit=1)) as url:
        monkeypatch.setenv("https_proxy", url)
        with refused("StorageUnavailable") as caught:
            await content(WebClient(LIMITS), "https://store.example/m")
    assert isinstance(caught.value, StorageError)
    assert caught.value.transient
    assert "s3cret" not in str(caught.value)


async def test_a_proxy_at_a_blocked_address_is_not_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://169.254.169.254:80")
    with refused("AddressBlocked"):
        await content(WebClient(LIMITS), "http://store.example/m")


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
async def test_no_form_of_a_blocked_address_is_sent_to_a_proxy(
    monkeypatch: pytest.MonkeyPatch, host: str, scheme: str, redirected: bool
) -> None:
    target = f"{scheme}://{host}/latest"
    redirect = f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()
    proxy = Answers(lambda head: redirect if " http://store.example/" in head else OK)
    async with listening(proxy) as url:
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, url)
        with pytest.raises(StorageError) as caught:
            await content(WebClient(LIMITS), "http://store.example/" if redirected else target)
    assert len(proxy.heads) == redirected
    if host.isascii():  # others may be refused as invalid addresses
        assert caught.value.reason == "AddressBlocked"


@pytest.mark.parametrize(
    "host", ["store.example", "10.0.0.1", "169.2540", "0x", "1.2.3.4.5", "12345678901234", "08.0.0.1"]
)
async def test_a_proxy_gets_requests_for_other_hosts(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    async with listening(Answers()) as url:
        monkeypatch.setenv("http_proxy", url)
        assert await content(WebClient(LIMITS), f"http://{host}/m") == b"ok"


async def test_a_password_may_be_in_netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    store = Answers()
    async with listening(store) as url:
        await content(WebClient(LIMITS), url)
    assert f"Authorization: Basic {b64encode(b'me:secret').decode()}\r\n" in store.heads[0]


async def test_a_store_that_does_not_support_tls() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(OK)

    async with listening(plain) as url:
        with pytest.raises(StorageError, match="does not support TLS"):
            await content(WebClient(LIMITS), url.replace("http", "https"))
