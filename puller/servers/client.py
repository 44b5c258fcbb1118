"""Calls to one HTTP server in the same pod: HTTP/1.1, short responses, kept connections.

No HTTP library is used here: its import and its requests, two for each model, would take more CPU than all
other work on a small model. The server is in the same pod, so little of HTTP is needed. Web storage, with
proxies, redirects and TLS, uses a library.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from puller.authorization import basic

MAX_BODY = 65536
"""The default limit for bytes of a body."""
_MAX_IDLE = 32
"""Idle connections at a time."""
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: [^\r\n]*)?")
_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?")


class NotListeningError(OSError):
    """The connection failed."""


class ConnectionLostError(OSError):
    """The connection ended before the response, or it is not HTTP. `unanswered`: no byte came."""

    def __init__(self, message: str, *, unanswered: bool = False) -> None:
        super().__init__(message)
        self.unanswered = unanswered


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def usable(self) -> bool:
        return not (self.reader.at_eof() or self.writer.is_closing())


class Client:
    """`url`: http:// or https://, perhaps with a path prefix. `key`: a bearer token."""

    def __init__(self, url: str, key: str = "") -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/")
        lines = [f"Host: {parts.netloc.rpartition('@')[2]}", "Accept: */*", "User-Agent: chassis-puller"]
        if key:
            lines.append(f"Authorization: Bearer {key}")
        elif parts.username is not None:
            lines.append(f"Authorization: {basic(unquote(parts.username), unquote(parts.password or ''))}")
        self._headers = "\r\n".join(lines)
        self._idle: list[_Connection] = []

    async def call(
        self, method: str, path: str, body: bytes | None = None, limit: int = MAX_BODY
    ) -> tuple[int, bytes]:
        """(status, the first `limit` bytes of the body). Raises NotListeningError or ConnectionLostError."""
        content = "" if body is None else f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._headers}\r\n{content}\r\n"
        request = head.encode("latin-1") + (body or b"")
        while self._idle:
            idle = self._idle.pop()
            if not idle.usable:
                idle.writer.close()
                continue
            try:
                return await self._send(idle, request, limit)
            except ConnectionLostError as error:
                # The server may just have closed it. A GET may be sent twice.
                if method != "GET" or not error.unanswered:
                    raise
        return await self._send(await self._connect(), request, limit)

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().writer.close()

    async def _connect(self) -> _Connection:
        try:
            return _Connection(
                *await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=MAX_BODY)
            )
        except OSError as error:
            raise NotListeningError(error.errno, error.strerror or str(error)) from None

    async def _send(self, connection: _Connection, request: bytes, limit: int) -> tuple[int, bytes]:
        """The response on this connection, which is reused only after a complete response."""
        reusable = False
        try:
            connection.writer.write(request)
            status, body, reusable = await _read_response(connection.reader, limit)
        finally:
            if reusable and len(self._idle) < _MAX_IDLE:
                self._idle.append(connection)
            else:
                connection.writer.close()
        return status, body


async def _read_response(reader: asyncio.StreamReader, limit: int) -> tuple[int, bytes, bool]:
    """(status, body, whether the connection can be reused). Raises ConnectionLostError."""
    started = False
    try:
        status = 100
        while status < 200:  # 1xx: the response follows
            head = await reader.readuntil(b"\r\n\r\n")
            started = True
            first, *lines = head[:-4].split(b"\r\n")
            status = _status(first)
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)
        }
        keep = first.startswith(b"HTTP/1.1") and b"close" not in headers.get(b"connection", b"").lower()
        body, whole = await _body(reader, status, headers, limit)
    except asyncio.IncompleteReadError as error:
        raise ConnectionLostError("connection lost", unanswered=not started and not error.partial) from None
    except (asyncio.LimitOverrunError, ValueError):
        raise ConnectionLostError("the response is not valid HTTP") from None
    except ConnectionLostError:
        raise
    except OSError as error:
        raise ConnectionLostError(error.strerror or "connection lost", unanswered=not started) from None
    return status, body, keep and whole


def _status(line: bytes) -> int:
    found = _STATUS.fullmatch(line)
    if found is None:
        raise ConnectionLostError("the response is not HTTP")
    return int(found[1])


async def _body(
    reader: asyncio.StreamReader, status: int, headers: dict[bytes, bytes], limit: int
) -> tuple[bytes, bool]:
    """(the first `limit` bytes, whether they are the whole body)."""
    if status in (204, 304):
        return b"", True
    if b"chunked" in headers.get(b"transfer-encoding", b"").lower():
        return await _chunks(reader, limit)
    if b"content-length" in headers:
        length = int(headers[b"content-length"])
        return await reader.readexactly(min(length, limit)), length <= limit
    try:
        return await reader.readexactly(limit), False
    except asyncio.IncompleteReadError as error:  # the end of the connection is the end of the body
        return error.partial, False


async def _chunks(reader: asyncio.StreamReader, limit: int) -> tuple[bytes, bool]:
    content = b""
    while True:
        found = _SIZE.fullmatch((await reader.readuntil(b"\r\n"))[:-2])
        if found is None:
            raise ConnectionLostError("a chunk is not valid")
        size = int(found[1], 16)
        if size == 0:
            while await reader.readuntil(b"\r\n") != b"\r\n":
                pass  # trailers
            return content, True
        if len(content) + size > limit:
            return content + await reader.readexactly(limit - len(content)), False
        content += (await reader.readexactly(size + 2))[:-2]
