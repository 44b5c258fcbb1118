"""GET requests to web servers: kept connections, proxies, TLS, redirects.

The event loop resolves names and connects, so both can be cancelled at once. The requests run in threads (see
connection.py). aiohttp is not used: its import takes longer than a small model, and it reads proxies and
passwords for each request.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from http.client import HTTPException
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import NamedTuple
from urllib.request import getproxies, proxy_bypass

from aiohappyeyeballs import start_connection
from yarl import URL

from puller.authorization import basic
from puller.log import logger
from puller.reasons import Reason
from puller.storage.addresses import (
    BlockedAddressError,
    address_blocked,
    blocked,
    blocked_name,
    guarded_socket,
)
from puller.storage.base import Limits, StorageError, in_thread
from puller.storage.connection import Connection, Response, StaleError

_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 10
_MAX_IDLE = 15.0
"""Seconds after which an idle connection is not used again: a proxy may have dropped it."""
_SECOND_TRY = 0.25
"""Seconds after which a name's next address is tried in parallel."""


class _Route(NamedTuple):
    """The server of a connection, and the proxy."""

    host: str
    port: int
    tls: bool = False
    proxy: URL | None = None


class WebClient:
    """The connections to all web servers, kept while one `async with` block is open and `linger` s longer.

    HTTP_PROXY, HTTPS_PROXY, a .netrc and SSL_CERT_FILE are read for the first connection, and again after the
    connections were closed.
    """

    def __init__(self, limits: Limits, linger: float = 0.0) -> None:
        self.limits = limits
        self._linger = linger
        self._users = 0
        self._closing: asyncio.Task[None] | None = None
        self._idle: defaultdict[_Route, list[tuple[Connection, float]]] = defaultdict(list)

    async def __aenter__(self) -> WebClient:
        self._users += 1
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        return self

    async def __aexit__(self, *error: object) -> None:
        self._users -= 1
        if self._users == 0:
            if self._linger:
                self._closing = asyncio.create_task(self._close_later())
            else:
                self.close()

    def close(self) -> None:
        """Close all connections now."""
        if self._closing is not None:
            self._closing.cancel()
        self._closing = None
        for connections in self._idle.values():
            for connection, _ in connections:
                connection.close()
        self._idle.clear()
        for name in ("_tls", "_proxies", "_passwords"):
            self.__dict__.pop(name, None)

    async def _close_later(self) -> None:
        await asyncio.sleep(self._linger)
        self._closing = None
        self.close()

    @asynccontextmanager
    async def get(self, url: URL, headers: Mapping[str, str]) -> AsyncGenerator[Response]:
        """The response to a GET after all redirects, with any status. Raises StorageError."""
        for _ in range(_MAX_REDIRECTS + 1):
            if not self.limits.allow_link_local and blocked_name(url.raw_host or ""):
                raise address_blocked()
            route = self._route(url)
            response = await self._request(route, url, headers)
            try:
                if response.status not in _REDIRECTS or "Location" not in response.headers:
                    yield response
                    return
                target = _redirected(url, response.headers["Location"])
            finally:
                self._release(route, response)
            if target.origin() != url.origin():
                headers = {name: text for name, text in headers.items() if name != "Authorization"}
            url = target
        raise StorageError(Reason.STORAGE_UNAVAILABLE, "the storage redirects without end.", transient=True)

    async def _request(self, route: _Route, url: URL, headers: Mapping[str, str]) -> Response:
        """The response on an idle connection, or on a new one."""
        sent = {
            "Host": url.host_port_subcomponent or "",
            "User-Agent": "chassis-puller",
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            **self._authorization(url),
            **headers,
        }
        target = url.raw_path_qs
        if route.proxy is not None and not route.tls:
            target = str(url.with_user(None).with_fragment(None))
            sent |= self._authorization(route.proxy, "Proxy-Authorization")
        while (idle := self._idle_connection(route)) is not None:
            with suppress(StaleError):
                return await self._send(idle, target, sent)
        return await self._send(await self._connect(route), target, sent)

    async def _send(self, connection: Connection, target: str, headers: Mapping[str, str]) -> Response:
        timeout = asyncio.get_running_loop().call_later(self.limits.head_timeout, connection.time_out)
        try:
            return await in_thread(
                connection.get, target, headers, self.limits.chunk_size, cancel=connection.abort
            )
        except BaseException as error:
            connection.close()
            if isinstance(error, HTTPException | OSError) and not isinstance(error, StaleError):
                raise _response_error(error) from None
            raise
        finally:
            timeout.cancel()

    def _idle_connection(self, route: _Route) -> Connection | None:
        connections = self._idle[route]
        while connections:
            connection, since = connections.pop()
            if time.monotonic() - since < _MAX_IDLE and connection.idle:
                return connection
            connection.close()
        return None

    def _release(self, route: _Route, response: Response) -> None:
        connection = response.connection
        if connection.reusable_after(response):
            self._idle[route].append((connection, time.monotonic()))
        else:
            connection.close()

    async def _connect(self, route: _Route) -> Connection:
        limits, guard = self.limits, not self.limits.allow_link_local
        host, port = route.host, route.port
        if route.proxy is not None:
            host, port = route.proxy.raw_host or "", route.proxy.port or 80
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
            allowed = [info for info in found if not (guard and blocked(str(info[4][0])))]
            if not allowed:
                raise BlockedAddressError(f"{host} resolves to a blocked address")
            async with asyncio.timeout(limits.connect_timeout):
                sock = await start_connection(
                    allowed,
                    happy_eyeballs_delay=_SECOND_TRY,
                    socket_factory=guarded_socket if guard else None,
                )
            connection = Connection(sock, limits.connect_timeout, limits.stall_timeout)
            timeout = loop.call_later(limits.head_timeout, connection.time_out)
            try:
                if route.tls:
                    await in_thread(self._start_tls, connection, route, cancel=connection.abort)
            except BaseException:
                connection.close()
                raise
            finally:
                timeout.cancel()
        except (HTTPException, OSError, UnicodeError) as error:
            raise _connection_error(error) from None
        return connection

    def _start_tls(self, connection: Connection, route: _Route) -> None:
        if route.proxy is not None:
            authorization = self._authorization(route.proxy, "Proxy-Authorization")
            connection.tunnel(route.host, route.port, authorization)
        connection.secure(self._tls, route.host.rstrip("."))

    def _route(self, url: URL) -> _Route:
        proxy = self._proxies.get(url.scheme)
        host = url.raw_host or ""
        if proxy is not None and proxy_bypass(url.host or ""):
            proxy = None
        return _Route(host, url.port or 80, url.scheme == "https", proxy)

    def _authorization(self, url: URL, header: str = "Authorization") -> dict[str, str]:
        """The header with the credentials of the URL or of .netrc, if there are any."""
        user, password = url.user, url.password
        if user is None and password is None:
            entry = self._passwords.authenticators(url.host or "") if self._passwords else None
            if entry is None:
                return {}
            user, _, password = entry
        return {header: basic(user, password)}

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        return context

    @cached_property
    def _proxies(self) -> dict[str, URL]:
        """The proxies by scheme."""
        found = {
            scheme: URL(url if "://" in url else f"http://{url}")
            for scheme, url in getproxies().items()
            if scheme in ("http", "https") and url
        }
        for proxy in found.values():
            if proxy.scheme != "http":
                logger.warning("proxy not used", error="only http:// proxies are supported", host=proxy.host)
        return {scheme: proxy for scheme, proxy in found.items() if proxy.scheme == "http" and proxy.host}

    @cached_property
    def _passwords(self) -> netrc | None:
        try:
            return netrc(os.environ.get("NETRC") or Path.home() / ".netrc")
        except (OSError, RuntimeError, NetrcParseError) as error:
            if "NETRC" in os.environ:
                logger.warning("NETRC not readable", error=type(error).__name__)
            return None


async def body(response: Response, min_chunk: int) -> AsyncGenerator[bytes]:
    """The body, `min_chunk` bytes or more at a time. Bytes before an error are yielded. Raises
    StorageError."""
    if prefetched := response.take_prefetched():
        yield prefetched
    while not response.complete:
        try:
            chunk = await in_thread(response.read, min_chunk, cancel=response.connection.abort)
        except (HTTPException, OSError) as error:
            raise _response_error(error) from None
        if chunk:
            yield chunk


async def read_body(response: Response, limit: int, server: str, reason: Reason) -> bytes:
    """The body, if it has at most `limit` bytes. Raises StorageError with this reason."""
    content = bytearray()
    async for chunk in body(response, 1):
        content += chunk
        if len(content) > limit:
            raise StorageError(reason, f"the {server}'s response is longer than {limit >> 20} MiB.")
    return bytes(content)


def check_status(status: int, server: str, item: str) -> None:
    """Raises StorageError for a status that is not 200 or 206."""
    if status in (401, 403):
        raise StorageError(Reason.ACCESS_DENIED, f"the {server} refuses access to {item} ({status}).")
    if status in (404, 410):
        raise StorageError(Reason.NOT_FOUND, f"the {server} has no {item} ({status}).")
    if status not in (200, 206):
        raise StorageError(Reason.STORAGE_UNAVAILABLE, f"the {server} answers {status}.", transient=True)


def web_url(text: str) -> URL:
    """A URL, without changes to its encoding if possible."""
    url, _, _ = text.partition("#")
    return URL(url, encoded=url.isascii() and " " not in url)


def _redirected(url: URL, location: str) -> URL:
    try:
        target = url.join(web_url(location))
        valid = target.scheme in ("http", "https") and target.host is not None
    except ValueError:
        valid = False
    if not valid or (url.scheme == "https" and target.scheme != "https"):
        raise StorageError(
            Reason.STORAGE_UNAVAILABLE, "the storage redirects to a URL that is not allowed.", transient=True
        )
    return target


def _response_error(error: Exception) -> StorageError:
    """Why a response is missing or incomplete, without text from the server."""
    if isinstance(error, TimeoutError):
        return StorageError(Reason.STORAGE_TIMEOUT, "the storage sent no byte in time.")
    return StorageError(Reason.STORAGE_UNAVAILABLE, "the connection to the storage broke.", transient=True)


def _connection_error(error: Exception) -> StorageError:
    if isinstance(error, BlockedAddressError) or BlockedAddressError.__name__ in repr(error):
        return address_blocked()
    if isinstance(error, TimeoutError):
        return StorageError(Reason.STORAGE_TIMEOUT, "the storage sent no byte in time.")
    if isinstance(error, UnicodeError):
        return StorageError(Reason.STORAGE_UNAVAILABLE, "the storage's address is not valid.")
    why = "the storage cannot be reached."
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"the storage is not trusted (certificate: {error.verify_message or 'unknown'})"
    elif isinstance(error, ssl.SSLError):
        why = "the storage does not support TLS, or no version in common."
    elif isinstance(error, socket.gaierror):
        why = "the storage's name cannot be resolved."
    elif isinstance(error, OSError) and error.errno:
        why = f"the storage cannot be reached ({os.strerror(error.errno)})"
    return StorageError(Reason.STORAGE_UNAVAILABLE, why, transient=True)
