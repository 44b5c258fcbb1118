"""Calls to one HTTP server in the same pod: HTTP/1.1, short answers, connections that are kept.

A model server is asked twice for each model, and an HTTP library costs more CPU than all the rest of a
small one: its import, then each request. The puller needs little of HTTP here, and the server is in
its own pod. Web storage, with its proxies, redirects and TLS, has a library.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from puller.authorization import basic

MAX_BODY = 65536
"""Bytes of a body that are read, unless more are asked for."""
_MAX_IDLE = 32
"""Connections that are kept at a time."""
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: [^\r\n]*)?")
_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?")


class NotListeningError(OSError):
    """No connection came about."""


class BrokenError(OSError):
    """The connection ended before the answer did, or it is not HTTP. `unanswered`: not a byte came."""

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
    """`url`: http:// or https://, with a path before all others if need be. `key`: a bearer token."""

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
        self, method: str, path: str, body: bytes | None = None, most: int = MAX_BODY
    ) -> tuple[int, bytes]:
        """(status, the first `most` bytes of the body). Raises NotListeningError or BrokenError."""
        content = "" if body is None else f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._headers}\r\n{content}\r\n"
        request = head.encode("latin-1") + (body or b"")
        while self._idle:
            kept = self._idle.pop()
            if not kept.usable:
                kept.writer.close()
                continue
            try:
                return await self._on(kept, request, most)
            except BrokenError as error:
                # The server may have closed it at this very moment. A GET may be sent twice.
                if method != "GET" or not error.unanswered:
                    raise
        return await self._on(await self._opened(), request, most)

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().writer.close()

    async def _opened(self) -> _Connection:
        try:
            found = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=MAX_BODY)
        except OSError as error:
            raise NotListeningError(error.errno, error.strerror or str(error)) from None
        return _Connection(*found)

    async def _on(self, connection: _Connection, request: bytes, most: int) -> tuple[int, bytes]:
        """The answer on this connection, which is kept only if all of it came."""
        kept = False
        try:
            connection.writer.write(request)
            status, body, kept = await _answer(connection.reader, most)
        finally:
            if kept and len(self._idle) < _MAX_IDLE:
                self._idle.append(connection)
            else:
                connection.writer.close()
        return status, body


async def _answer(reader: asyncio.StreamReader, most: int) -> tuple[int, bytes, bool]:
    """(status, body, whether the connection may be used again). Raises BrokenError."""
    begun = False
    try:
        status = 100
        while status < 200:  # 1xx: the answer is still to come
            head = await reader.readuntil(b"\r\n\r\n")
            begun = True
            first, *lines = head[:-4].split(b"\r\n")
            status = _status(first)
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)
        }
        keep = first.startswith(b"HTTP/1.1") and b"close" not in headers.get(b"connection", b"").lower()
        body, whole = await _body(reader, status, headers, most)
    except asyncio.IncompleteReadError as error:
        raise BrokenError("connection lost", unanswered=not begun and not error.partial) from None
    except (asyncio.LimitOverrunError, ValueError):
        raise BrokenError("no sound HTTP comes") from None
    except BrokenError:
        raise
    except OSError as error:
        raise BrokenError(error.strerror or "connection lost", unanswered=not begun) from None
    return status, body, keep and whole


def _status(line: bytes) -> int:
    found = _STATUS.fullmatch(line)
    if found is None:
        raise BrokenError("no HTTP comes")
    return int(found[1])


async def _body(
    reader: asyncio.StreamReader, status: int, headers: dict[bytes, bytes], most: int
) -> tuple[bytes, bool]:
    """(the first `most` bytes, whether that is all of it)."""
    if status in (204, 304):
        return b"", True
    if b"chunked" in headers.get(b"transfer-encoding", b"").lower():
        return await _chunks(reader, most)
    if b"content-length" in headers:
        length = int(headers[b"content-length"])
        return await reader.readexactly(min(length, most)), length <= most
    try:
        return await reader.readexactly(most), False
    except asyncio.IncompleteReadError as error:  # it ends with the connection
        return error.partial, False


async def _chunks(reader: asyncio.StreamReader, most: int) -> tuple[bytes, bool]:
    held = b""
    while True:
        found = _SIZE.fullmatch((await reader.readuntil(b"\r\n"))[:-2])
        if found is None:
            raise BrokenError("no sound chunk comes")
        size = int(found[1], 16)
        if size == 0:
            while await reader.readuntil(b"\r\n") != b"\r\n":
                pass  # trailers
            return held, True
        if len(held) + size > most:
            return held + await reader.readexactly(most - len(held)), False
        held += (await reader.readexactly(size + 2))[:-2]
