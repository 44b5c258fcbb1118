"""Plain web servers: GET, ranged where they know ranges, redirects followed.

Nothing that such a server says (a body, a header, where a redirect leads) is shown to anybody: the status of
the puller is open, and a config may name servers that its writer cannot reach.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from urllib.parse import quote, unquote, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from puller.reasons import Reason
from puller.storage.addresses import (
    BlockedAddressError,
    address_blocked,
    blocked,
    guarded_socket,
)
from puller.storage.base import Limits, StorageError, safe_path
from puller.storage.objects import RemoteObject, Source, archive_kind

_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 10
_BUFFER = 1 << 20
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_LENGTH = re.compile(r"[0-9]{1,18}")


class GuardedResolver(AbstractResolver):
    """Names to addresses, without the blocked ones. A name that has no others raises BlockedAddressError."""

    def __init__(self) -> None:
        self._inner = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        allowed = [entry for entry in found if not blocked(entry["host"])]
        if found and not allowed:
            raise BlockedAddressError(f"{host} leads to a blocked address")
        return allowed

    async def close(self) -> None:
        await self._inner.close()


class WebClient:
    """The connections to all web servers, kept while anybody is inside `async with` and `linger` s longer."""

    def __init__(self, limits: Limits, linger: float = 0.0) -> None:
        self.limits = limits
        self._linger = linger
        self._users = 0
        self._session: aiohttp.ClientSession | None = None
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> WebClient:
        self._users += 1
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._users -= 1
        if self._users == 0 and self._session is not None:
            if self._linger:
                self._closing = asyncio.create_task(self._close_later())
            else:
                await self.close()

    async def close(self) -> None:
        """Close all connections now."""
        if self._closing is not None and self._closing is not asyncio.current_task():
            self._closing.cancel()
        self._closing = None
        session, self._session = self._session, None
        self.__dict__.pop("_trusted", None)  # the next one reads SSL_CERT_FILE anew
        if session is not None:
            await session.close()

    async def _close_later(self) -> None:
        await asyncio.sleep(self._linger)
        await self.close()

    @asynccontextmanager
    async def get(self, url: URL, headers: Mapping[str, str]) -> AsyncGenerator[aiohttp.ClientResponse]:
        """The answer to a GET at the end of all redirects, whatever its status. Raises StorageError."""
        for _ in range(_MAX_REDIRECTS + 1):
            if not self.limits.allow_link_local and blocked(url.raw_host or ""):
                raise address_blocked()
            try:
                tls = self._trusted if url.scheme == "https" else True
                response = await self._opened().get(url, headers=headers, allow_redirects=False, ssl=tls)
            except (aiohttp.ClientError, OSError) as error:
                raise _explained(error) from None
            async with response:
                if response.status not in _REDIRECTS or "Location" not in response.headers:
                    yield response
                    return
                target = _redirected(url, response.headers["Location"])
            if target.origin() != url.origin():
                headers = {name: text for name, text in headers.items() if name != "Authorization"}
            url = target
        raise StorageError(Reason.STORAGE_UNAVAILABLE, "the storage redirects without end.", passing=True)

    @cached_property
    def _trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            limits = self.limits
            connector = (
                aiohttp.TCPConnector(limit=0)
                if limits.allow_link_local
                else aiohttp.TCPConnector(limit=0, resolver=GuardedResolver(), socket_factory=guarded_socket)
            )
            timeout = aiohttp.ClientTimeout(
                total=None, sock_connect=limits.connect_timeout, sock_read=limits.stall_timeout
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=timeout,
                auto_decompress=False,
                trust_env=True,
                read_bufsize=_BUFFER,
                headers={"Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


@dataclass(frozen=True, slots=True)
class Answer:
    """What an answer says of an object. `size`: of the whole object, None where it comes in chunks and nobody
    knows; `version`: what tells it from another; `kind`: its content type; `sound`: whether it is sent as it
    is stored; `ranges`: whether it is the part that was asked for."""

    size: int | None
    etag: str
    version: str
    kind: str
    sound: bool
    ranges: bool
    response: aiohttp.ClientResponse = field(repr=False)

    def chunks(self, least: int) -> AsyncGenerator[bytes]:
        """The body, in pieces of `least` bytes or more. Raises StorageError."""
        return body_of(self.response, least)


@dataclass(frozen=True, slots=True)
class WebStore:
    """One web address, its query kept (signed URLs live there); `key`s are paths below it. `head`: what came
    of the one object with the answer that told what it is; it is given once."""

    client: WebClient
    url: URL
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    head: bytearray = field(default_factory=bytearray, repr=False)

    @asynccontextmanager
    async def get(
        self, key: str, span: tuple[int, int] | None = None, etag: str = ""
    ) -> AsyncGenerator[Answer]:
        """The object, or the bytes [start, end) of it. Raises StorageError; RangeError where the server says
        that there are no such bytes."""
        headers = dict(self.headers)
        if span is not None:
            headers["Range"] = f"bytes={span[0]}-{span[1] - 1}"
        if etag and not etag.startswith("W/"):
            headers["If-Match"] = etag
        url = self.url.joinpath(quote(key), encoded=True) if key else self.url
        async with self.client.get(url, headers) as response:
            _check_status(response.status, ranged=span is not None)
            yield _answer(response, span)

    async def pieces(
        self, item: RemoteObject, start: int, end: int, limits: Limits, least: int
    ) -> AsyncGenerator[bytes]:
        """See Origin. What came of the object with the first answer is not asked for again."""
        if start == 0 and self.head:
            head = bytes(self.head[:end])
            self.head.clear()
            yield head
            start = len(head)
        if start < end:
            async with aclosing(self._asked(item, start, end, least)) as stream:
                async for piece in stream:
                    yield piece

    async def _asked(self, item: RemoteObject, start: int, end: int, least: int) -> AsyncGenerator[bytes]:
        span = (start, end) if item.ranges else None
        try:
            async with self.get(item.key, span, item.etag) as answer:
                if start and not answer.ranges:
                    raise StorageError(Reason.STORAGE_UNAVAILABLE, "the storage knows no ranges any more.")
                if item.sized and answer.size not in (None, item.size):
                    raise StorageError(
                        Reason.SOURCE_CHANGED, f"{item.path} has {answer.size} bytes, not {item.size}."
                    )
                if item.version and answer.version != item.version:
                    raise StorageError(
                        Reason.SOURCE_CHANGED, f"{item.path} was replaced while it was being read."
                    )
                async for chunk in answer.chunks(min(least, end - start)):
                    yield chunk
        except RangeError:
            raise StorageError(Reason.SOURCE_CHANGED, f"{item.path} became shorter.") from None


async def body_of(response: aiohttp.ClientResponse, least: int) -> AsyncGenerator[bytes]:
    """The body, in pieces of `least` bytes or more; what had come when it broke is yielded first. Raises
    StorageError."""
    held: list[bytes] = []
    length = 0
    broken: StorageError | None = None
    while broken is None:
        try:
            piece = await response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            piece, broken = b"", _explained(error)
        if piece:
            held.append(piece)
            length += len(piece)
        if held and (length >= least or not piece):
            yield held[0] if len(held) == 1 else b"".join(held)
            held, length = [], 0
        if not piece and broken is None:
            return
    raise broken


async def page(uri: str, web: WebClient) -> Source:
    """What a plain web server has at an address. Asked for by GET: HEAD is not in a URL signed for GET."""
    name = unquote(urlsplit(uri).path).strip("/").rsplit("/", 1)[-1] or "model"
    path = safe_path(name)
    store = WebStore(web, web_url(uri))
    try:
        async with store.get("", (0, web.limits.chunk_size)) as answer:
            store.head.extend(await _head(answer, web.limits.chunk_size))
    except RangeError:
        async with store.get("") as answer:  # an empty object has no first byte
            pass
    kind = archive_kind(name, answer.kind)
    if not (answer.sound or kind or path.endswith(".gz")):
        raise StorageError(Reason.STORAGE_UNAVAILABLE, f"the server sends {path} compressed, unasked.")
    item = RemoteObject(
        store,
        "",
        path,
        answer.size or 0,
        answer.etag,
        ranges=answer.ranges,
        version=answer.version,
        sized=answer.size is not None,
    )
    whole = bytes(store.head) if item.sized and len(store.head) == item.size else b""
    return Source((item,), kind, whole)


async def _head(answer: Answer, most: int) -> bytes:
    """The body, where it is short; nothing where it is not, or where it broke: that is fetched later on."""
    if not answer.ranges and (answer.size is None or answer.size > most):
        return b""
    held = b""
    with suppress(StorageError):
        async for piece in answer.chunks(most):
            held += piece
    return held if len(held) == min(answer.size or 0, most) else b""


class RangeError(Exception):
    """The server has no such bytes: the object is empty."""


def web_url(text: str) -> URL:
    """A URL as it is written, where that is possible."""
    url, _, _ = text.partition("#")
    return URL(url, encoded=url.isascii() and " " not in url)


def _redirected(url: URL, location: str) -> URL:
    try:
        target = url.join(web_url(location))
        sound = target.scheme in ("http", "https") and target.host is not None
    except ValueError:
        sound = False
    if not sound or (url.scheme == "https" and target.scheme != "https"):
        raise StorageError(
            Reason.STORAGE_UNAVAILABLE, "the storage redirects to where it must not.", passing=True
        )
    return target


def _check_status(status: int, *, ranged: bool) -> None:
    if status in (401, 403):
        raise StorageError(Reason.ACCESS_DENIED, f"the storage refuses access ({status}).")
    if status in (404, 410):
        raise StorageError(Reason.NOT_FOUND, f"there is nothing there ({status}).")
    if status == 412:
        raise StorageError(Reason.SOURCE_CHANGED, "an object was replaced while it was being read.")
    if status == 416 and ranged:
        raise RangeError
    if status not in (200, 206):
        raise StorageError(Reason.STORAGE_UNAVAILABLE, f"the storage answers {status}.", passing=True)


def _answer(response: aiohttp.ClientResponse, span: tuple[int, int] | None) -> Answer:
    headers = response.headers
    length = headers.get("Content-Length", "")
    size = int(length) if _LENGTH.fullmatch(length) else None
    ranges = span is not None and response.status == 206
    if response.status == 206:
        found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
        if found is None or span is None or int(found[1]) != span[0]:
            raise StorageError(
                Reason.STORAGE_UNAVAILABLE, "the storage gives another part than was asked for.", passing=True
            )
        size = int(found[3])
    elif size is None and headers.get("Transfer-Encoding", "").lower() != "chunked":
        raise StorageError(
            Reason.STORAGE_UNAVAILABLE,
            "the storage sends neither a Content-Length nor chunks: nobody can tell when all has come.",
        )
    etag = headers.get("ETag", "")
    return Answer(
        size=size,
        etag=etag,
        version=etag or headers.get("Last-Modified", ""),
        kind=headers.get("Content-Type", ""),
        sound=headers.get("Content-Encoding", "identity").lower() == "identity",
        ranges=ranges,
        response=response,
    )


def _explained(error: Exception) -> StorageError:
    """What aiohttp raised, in words that are none of the server's."""
    cause = getattr(error, "os_error", error)
    if isinstance(cause, BlockedAddressError) or BlockedAddressError.__name__ in repr(cause):
        return address_blocked()
    if isinstance(error, TimeoutError):
        return StorageError(Reason.STORAGE_TIMEOUT, "the storage gave not a byte in time.")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason = getattr(error.certificate_error, "verify_message", "")
        return StorageError(
            Reason.STORAGE_UNAVAILABLE,
            f"the storage is not trusted (certificate: {reason or 'unknown'})",
            passing=True,
        )
    if isinstance(error, aiohttp.ClientSSLError) or isinstance(cause, ssl.SSLError):
        return StorageError(Reason.STORAGE_UNAVAILABLE, "the storage speaks no TLS we know.", passing=True)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return StorageError(Reason.STORAGE_UNAVAILABLE, "the storage's name is not known.", passing=True)
    if isinstance(error, aiohttp.InvalidURL):
        return StorageError(Reason.STORAGE_UNAVAILABLE, "the storage's address is not sound.")
    if isinstance(error, aiohttp.ClientConnectorError):
        why = f" ({os.strerror(error.errno)})" if error.errno else "."
        return StorageError(Reason.STORAGE_UNAVAILABLE, f"the storage cannot be reached{why}", passing=True)
    return StorageError(Reason.STORAGE_UNAVAILABLE, "the connection to the storage broke.", passing=True)
