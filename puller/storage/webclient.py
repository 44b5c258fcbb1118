"""The connections to web servers: kept, through proxies, with TLS, redirects followed.

The event loop looks names up and connects, so that either can be given up at once; the requests themselves
run in threads (see connection.py). aiohttp, which did all of this before, takes longer to import than all
else that a small model needs, and looks for proxies and passwords with each request.
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
from functools import cached_property, partial
from http.client import HTTPException
from netrc import NetrcParseError, netrc
from pathlib import Path
from types import TracebackType
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
_KEPT = 15.0
"""Seconds after which an idle connection is not used again: a proxy on the way may have dropped it."""
_SECOND_TRY = 0.25
"""Seconds after which a name's next address is tried in parallel."""


class _Place(NamedTuple):
    """Where a connection leads, and through which proxy."""

    host: str
    port: int
    tls: bool = False
    proxy: URL | None = None


class WebClient:
    """The connections to all web servers, kept while anybody is inside `async with` and `linger` s longer.

    HTTP_PROXY, HTTPS_PROXY, a .netrc and SSL_CERT_FILE are read when the first connection is made.
    """

    def __init__(self, limits: Limits, linger: float = 0.0) -> None:
        self.limits = limits
        self._linger = linger
        self._users = 0
        self._closing: asyncio.Task[None] | None = None
        self._idle: defaultdict[_Place, list[tuple[Connection, float]]] = defaultdict(list)

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
        for kept in self._idle.values():
            for connection, _ in kept:
                connection.close()
        self._idle.clear()
        for read in ("_trusted", "_proxies", "_passwords"):
            self.__dict__.pop(read, None)  # the next one reads the environment again

    async def _close_later(self) -> None:
        await asyncio.sleep(self._linger)
        self._closing = None
        self.close()

    @asynccontextmanager
    async def get(self, url: URL, headers: Mapping[str, str]) -> AsyncGenerator[Response]:
        """The answer to a GET at the end of all redirects, of any status. Raises StorageError."""
        for _ in range(_MAX_REDIRECTS + 1):
            if not self.limits.allow_link_local and blocked_name(url.raw_host or ""):
                raise address_blocked()
            place = self._place(url)
            response = await self._asked(place, url, headers)
            try:
                if response.status not in _REDIRECTS or "Location" not in response.headers:
                    yield response
                    return
                target = _redirected(url, response.headers["Location"])
            finally:
                self._release(place, response)
            if target.origin() != url.origin():
                headers = {name: text for name, text in headers.items() if name != "Authorization"}
            url = target
        raise StorageError(Reason.STORAGE_UNAVAILABLE, "the storage redirects without end.", passing=True)

    async def _asked(self, place: _Place, url: URL, headers: Mapping[str, str]) -> Response:
        """The answer on a connection that was kept, or on a new one."""
        said = {
            "Host": url.host_port_subcomponent or "",
            "User-Agent": "chassis-puller",
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            **self._authorization(url),
            **headers,
        }
        target = url.raw_path_qs
        if place.proxy is not None and not place.tls:
            target = str(url.with_user(None).with_fragment(None))
            said |= self._authorization(place.proxy, "Proxy-Authorization")
        while (kept := self._kept(place)) is not None:
            with suppress(StaleError):
                return await self._on(kept, target, said)
        return await self._on(await self._connected(place), target, said)

    async def _on(self, connection: Connection, target: str, headers: Mapping[str, str]) -> Response:
        ask = partial(connection.ask, target, headers, self.limits.chunk_size)
        late = asyncio.get_running_loop().call_later(self.limits.head_timeout, connection.give_up)
        try:
            return await in_thread(ask, connection.abort)
        except StaleError:
            connection.close()
            raise
        except (HTTPException, OSError) as error:
            connection.close()
            raise _explained(error) from None
        except BaseException:
            connection.close()
            raise
        finally:
            late.cancel()

    def _kept(self, place: _Place) -> Connection | None:
        """An idle connection."""
        kept = self._idle[place]
        while kept:
            connection, since = kept.pop()
            if time.monotonic() - since < _KEPT and connection.alive:
                return connection
            connection.close()
        return None

    def _release(self, place: _Place, response: Response) -> None:
        connection = response.connection
        if connection.keeps(response):
            self._idle[place].append((connection, time.monotonic()))
        else:
            connection.close()

    async def _connected(self, place: _Place) -> Connection:
        try:
            return await self._opened(place)
        except (HTTPException, OSError, UnicodeError) as error:
            raise _unreachable(error) from None

    async def _opened(self, place: _Place) -> Connection:
        limits, guard = self.limits, not self.limits.allow_link_local
        at = place if place.proxy is None else _Place(place.proxy.raw_host or "", place.proxy.port or 80)
        found = await asyncio.get_running_loop().getaddrinfo(
            at.host, at.port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )
        allowed = [info for info in found if not (guard and blocked(str(info[4][0])))]
        if not allowed:
            raise BlockedAddressError(f"{at.host} leads to a blocked address")
        async with asyncio.timeout(limits.connect_timeout):
            sock = await start_connection(
                allowed, happy_eyeballs_delay=_SECOND_TRY, socket_factory=guarded_socket if guard else None
            )
        connection = Connection(sock, limits.connect_timeout, limits.stall_timeout)
        late = asyncio.get_running_loop().call_later(limits.head_timeout, connection.give_up)
        try:
            if place.tls:
                await in_thread(partial(self._secured, connection, place), connection.abort)
        except BaseException:
            connection.close()
            raise
        finally:
            late.cancel()
        return connection

    def _secured(self, connection: Connection, place: _Place) -> None:
        if place.proxy is not None:
            said = self._authorization(place.proxy, "Proxy-Authorization")
            connection.tunnel(place.host, place.port, said)
        connection.secure(self._trusted, place.host.rstrip("."))

    def _place(self, url: URL) -> _Place:
        """Where the connection goes for this URL, and by which way."""
        proxy = self._proxies.get(url.scheme)
        host = url.raw_host or ""
        if proxy is not None and proxy_bypass(url.host or ""):
            proxy = None
        return _Place(host, url.port or 80, url.scheme == "https", proxy)

    def _authorization(self, url: URL, header: str = "Authorization") -> dict[str, str]:
        """What the URL, or .netrc, has by way of a password."""
        user, password = url.user, url.password
        if user is None and password is None:
            known = self._passwords.authenticators(url.host or "") if self._passwords else None
            if known is None:
                return {}
            user, _, password = known
        return {header: basic(user, password)}

    @cached_property
    def _trusted(self) -> ssl.SSLContext:
        made = ssl.create_default_context()
        made.set_alpn_protocols(["http/1.1"])
        return made

    @cached_property
    def _proxies(self) -> dict[str, URL]:
        """The proxy for each scheme that has one."""
        found = {
            scheme: URL(said if "://" in said else f"http://{said}")
            for scheme, said in getproxies().items()
            if scheme in ("http", "https") and said
        }
        for proxy in found.values():
            if proxy.scheme != "http":
                logger.warning("proxy not used", error="only http:// proxies are known", host=proxy.host)
        return {scheme: proxy for scheme, proxy in found.items() if proxy.scheme == "http" and proxy.host}

    @cached_property
    def _passwords(self) -> netrc | None:
        try:
            return netrc(os.environ.get("NETRC") or Path.home() / ".netrc")
        except (OSError, RuntimeError, NetrcParseError) as error:
            if "NETRC" in os.environ:
                logger.warning("NETRC not readable", error=type(error).__name__)
            return None


async def body_of(response: Response, least: int) -> AsyncGenerator[bytes]:
    """The body, in pieces of `least` bytes or more; bytes before an error are yielded first. Raises
    StorageError."""
    if early := response.early():
        yield early
    while not response.over:
        try:
            piece = await in_thread(partial(response.read, least), response.connection.abort)
        except (HTTPException, OSError) as error:
            raise _explained(error) from None
        if piece:
            yield piece


async def whole_body(response: Response, most: int, whose: str, reason: Reason) -> bytes:
    """The body, if it has at most `most` bytes. Raises StorageError."""
    held = bytearray()
    async for piece in body_of(response, 1):
        held += piece
        if len(held) > most:
            raise StorageError(reason, f"the {whose}'s answer is longer than {most >> 20} MiB.")
    return bytes(held)


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


def _explained(error: Exception) -> StorageError:
    """Why no answer, or not all of it, came; in words that are none of the server's."""
    if isinstance(error, TimeoutError):
        return StorageError(Reason.STORAGE_TIMEOUT, "the storage gave not a byte in time.")
    return StorageError(Reason.STORAGE_UNAVAILABLE, "the connection to the storage broke.", passing=True)


def _unreachable(error: Exception) -> StorageError:
    """Why no connection came about."""
    if isinstance(error, BlockedAddressError) or BlockedAddressError.__name__ in repr(error):
        return address_blocked()
    if isinstance(error, TimeoutError):
        return StorageError(Reason.STORAGE_TIMEOUT, "the storage gave not a byte in time.")
    if isinstance(error, UnicodeError):
        return StorageError(Reason.STORAGE_UNAVAILABLE, "the storage's address is not sound.")
    why = "the storage cannot be reached."
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"the storage is not trusted (certificate: {error.verify_message or 'unknown'})"
    elif isinstance(error, ssl.SSLError):
        why = "the storage speaks no TLS we know."
    elif isinstance(error, socket.gaierror):
        why = "the storage's name is not known."
    elif isinstance(error, OSError) and error.errno:
        why = f"the storage cannot be reached ({os.strerror(error.errno)})"
    return StorageError(Reason.STORAGE_UNAVAILABLE, why, passing=True)
