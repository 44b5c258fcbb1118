"""GET requests to web servers, with aiohttp: kept connections, proxies, TLS, redirects.

Each connection goes to an address that was checked after the name was resolved (see addresses.py). The names
of cached addresses could lead elsewhere meanwhile, so aiohttp's cache of names is off.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from netrc import NetrcParseError, netrc
from pathlib import Path
from urllib.request import getproxies, proxy_bypass

from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientError,
    ClientHttpProxyError,
    ClientResponse,
    ClientSession,
    ClientSSLError,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
    ThreadedResolver,
    encode_basic_auth,
)
from aiohttp.abc import ResolveResult
from yarl import URL

from puller.log import logger
from puller.reasons import StatusReason
from puller.storage.addresses import (
    BlockedAddressError,
    address_blocked,
    blocked,
    blocked_name,
    guarded_socket,
)
from puller.storage.base import Limits, StorageError

_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 10
_MAX_IDLE = 15.0
"""Seconds after which an idle connection is not used again: a proxy may have dropped it."""
_MAX_HEADER = 65536
"""Bytes of a header: a signed URL in a redirect can be long."""
_HEADERS = {"User-Agent": "chassis-puller", "Accept": "*/*", "Accept-Encoding": "identity"}


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
                await self.close()

    async def close(self) -> None:
        """Close all connections now."""
        if self._closing is not None:
            self._closing.cancel()
        self._closing = None
        session = self.__dict__.pop("_session", None)
        for name in ("_tls", "_proxies", "_passwords"):
            self.__dict__.pop(name, None)
        if session is not None:
            await session.close()

    async def _close_later(self) -> None:
        await asyncio.sleep(self._linger)
        self._closing = None
        await self.close()

    @asynccontextmanager
    async def get(self, url: URL, headers: Mapping[str, str]) -> AsyncGenerator[ClientResponse]:
        """The response to a GET after all redirects, with any status. Raises StorageError."""
        for _ in range(_MAX_REDIRECTS + 1):
            if not self.limits.allow_link_local and blocked_name(url.raw_host or ""):
                raise address_blocked()
            response = await self._request(url, headers)
            try:
                if response.status not in _REDIRECTS or "Location" not in response.headers:
                    yield response
                    return
                target = _redirected(url, response.headers["Location"])
            finally:
                response.release()  # keeps the connection only after a complete response
            if target.origin() != url.origin():
                headers = {name: text for name, text in headers.items() if name != "Authorization"}
            url = target
        raise StorageError(
            StatusReason.STORAGE_UNAVAILABLE, "the storage redirects without end.", transient=True
        )

    async def _request(self, url: URL, headers: Mapping[str, str]) -> ClientResponse:
        try:
            async with asyncio.timeout(self.limits.head_timeout):
                return await self._session.get(
                    url.with_user(None).with_fragment(None),
                    headers={**self._authorization(url), **headers},
                    allow_redirects=False,
                    proxy=self._proxy(url),
                    ssl=self._tls if url.scheme == "https" else True,
                )
        except (ClientError, OSError, ValueError) as error:  # TimeoutError is an OSError
            raise _storage_error(error) from None

    @cached_property
    def _session(self) -> ClientSession:
        guard = not self.limits.allow_link_local
        connector = TCPConnector(
            limit=0,
            keepalive_timeout=_MAX_IDLE,
            use_dns_cache=False,
            resolver=_GuardedResolver() if guard else None,
            socket_factory=guarded_socket if guard else None,
        )
        timeout = ClientTimeout(sock_connect=self.limits.connect_timeout, sock_read=self.limits.stall_timeout)
        return ClientSession(
            connector=connector,
            timeout=timeout,
            headers=_HEADERS,
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
            max_line_size=_MAX_HEADER,
            max_field_size=_MAX_HEADER,
        )

    def _proxy(self, url: URL) -> URL | None:
        proxy = self._proxies.get(url.scheme)
        return None if proxy is None or proxy_bypass(url.host or "") else proxy

    def _authorization(self, url: URL) -> dict[str, str]:
        """The header with the credentials of the URL or of .netrc, if there are any."""
        user, password = url.user, url.password
        if user is None and password is None:
            entry = self._passwords.authenticators(url.host or "") if self._passwords else None
            if entry is None:
                return {}
            user, _, password = entry
        return {"Authorization": encode_basic_auth(user or "", password or "")}

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


class _GuardedResolver(ThreadedResolver):
    """Resolves names to addresses that may be connected to."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await super().resolve(host, port, family)
        allowed = [each for each in found if not blocked(each["host"])]
        if not allowed:
            raise BlockedAddressError(f"{host} resolves to a blocked address")
        return allowed


async def body(response: ClientResponse, min_chunk: int) -> AsyncGenerator[bytes]:
    """The body, `min_chunk` bytes or more at a time. Bytes before an error are yielded. Raises
    StorageError."""
    failure: StorageError | None = None
    while failure is None and not response.content.at_eof():
        parts: list[bytes] = []
        missing = min_chunk
        try:
            while missing > 0 and (part := await response.content.readany()):
                parts.append(part)
                missing -= len(part)
        except (ClientError, OSError) as error:
            failure = _response_error(error)
        if parts:
            yield parts[0] if len(parts) == 1 else b"".join(parts)
    if failure is not None:
        raise failure


async def read_body(response: ClientResponse, limit: int, server: str, reason: StatusReason) -> bytes:
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
        raise StorageError(StatusReason.ACCESS_DENIED, f"the {server} refuses access to {item} ({status}).")
    if status in (404, 410):
        raise StorageError(StatusReason.NOT_FOUND, f"the {server} has no {item} ({status}).")
    if status not in (200, 206):
        raise StorageError(
            StatusReason.STORAGE_UNAVAILABLE, f"the {server} answers {status}.", transient=True
        )


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
            StatusReason.STORAGE_UNAVAILABLE,
            "the storage redirects to a URL that is not allowed.",
            transient=True,
        )
    return target


def _response_error(error: Exception) -> StorageError:
    """Why a response is missing or incomplete, without text from the server."""
    if isinstance(error, TimeoutError):
        return StorageError(StatusReason.STORAGE_TIMEOUT, "the storage sent no byte in time.")
    return StorageError(
        StatusReason.STORAGE_UNAVAILABLE, "the connection to the storage broke.", transient=True
    )


def _storage_error(error: Exception) -> StorageError:
    """Why there is no connection or no response."""
    if BlockedAddressError.__name__ in repr(error) or BlockedAddressError.__name__ in repr(error.__cause__):
        return address_blocked()
    if isinstance(error, ClientConnectorCertificateError):
        cause = error.certificate_error
        why = getattr(cause, "verify_message", "") or "unknown"
        why = f"the storage is not trusted (certificate: {why})"
    elif isinstance(error, ClientSSLError):
        why = "the storage does not support TLS, or no version in common."
    elif isinstance(error, ClientConnectorDNSError):
        why = "the storage's name cannot be resolved."
    elif isinstance(error, ClientConnectorError):
        number = error.os_error.errno
        why = "the storage cannot be reached" + (f" ({os.strerror(number)})" if number else ".")
    elif isinstance(error, ClientHttpProxyError):
        why = "the storage cannot be reached: the proxy refuses the connection."
    elif isinstance(error, ValueError):
        return StorageError(StatusReason.STORAGE_UNAVAILABLE, "the storage's address is not valid.")
    else:
        return _response_error(error)
    return StorageError(StatusReason.STORAGE_UNAVAILABLE, why, transient=True)
