"""Plain requests: reviews in the form in which API servers send them, read without aiohttp.

Law: if in doubt, the request is not treated as plain. A head is plain if every line is known and describes
only the type and length of the body. aiohttp reads all other requests, byte for byte, and all later ones on
that connection. This module refuses no request.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple

HEAD_BYTES: Final = 1024
"""A longer head is not plain."""
HEADS_KEPT: Final = 1024
"""The heads of one caller differ only in the length of the body."""

_FIRST: Final = re.compile(rb"POST /([a-z]+)(?:\?timeout=([0-9a-z.]{1,16}))? HTTP/1\.1")
_LINE: Final = re.compile(rb"([A-Za-z-]+): ([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)")
_LENGTH: Final = re.compile(rb"0|[1-9][0-9]{0,8}")
_NEEDED: Final = frozenset((b"host", b"content-type", b"content-length"))
_IDLE: Final = frozenset(
    (b"user-agent", b"accept", b"accept-encoding", b"traceparent", b"tracestate", b"baggage")
)
"""Headers that do not affect how a request is read or answered."""


class Head(NamedTuple):
    """The head of a plain request."""

    endpoint: str
    timeout: str
    """The value of `?timeout=`, empty if there is none."""
    length: int
    """Bytes of the body."""


@lru_cache(HEADS_KEPT)
def read(head: bytes) -> Head | None:
    """Parse a head (without its empty last line); None if it is not plain."""
    first, *lines = head.split(b"\r\n")
    request = _FIRST.fullmatch(first)
    headers: dict[bytes, bytes] = {}
    for line in lines:
        header = _LINE.fullmatch(line)
        if header is None or (name := header[1].lower()) in headers or name not in _NEEDED | _IDLE:
            return None
        headers[name] = header[2]
    if request is None or not headers.keys() >= _NEEDED or headers[b"content-type"] != b"application/json":
        return None
    if _LENGTH.fullmatch(headers[b"content-length"]) is None:
        return None
    return Head(request[1].decode(), (request[2] or b"").decode(), int(headers[b"content-length"]))


class Plain(NamedTuple):
    """A whole plain request."""

    head: Head
    body: bytes
    time_limit: float
    """Seconds from its first byte to its answer."""


class Reader:
    """Reads the plain requests of one connection, until the first other bytes."""

    __slots__ = ("_held", "_longest", "_time_limit", "_whole", "time_limit")

    def __init__(self, time_limit: Callable[[Head], float | None], longest: int) -> None:
        """`time_limit` returns the `Plain.time_limit` of a request, or None if aiohttp must read it.
        `longest`: bytes of a body that may be held here."""
        self._time_limit, self._longest = time_limit, longest
        self._held = bytearray()
        self._whole = 0
        """The length of the arriving request, of which a part is held."""
        self.time_limit = 0.0
        """The time limit of the arriving request."""

    def read(self, data: bytes) -> Plain | bytes | None:
        """The request that these bytes complete; None while it is arriving; all its bytes so far if it is not
        plain."""
        held = self._held
        if held:
            held += data
            if len(held) < self._whole:
                return None
            data = self.rest()
        end = data.find(b"\r\n\r\n", 0, HEAD_BYTES)
        head = read(data[:end]) if end > 0 else None
        time_limit = self._time_limit(head) if head is not None and head.length <= self._longest else None
        if head is None or time_limit is None:
            return data
        whole = end + 4 + head.length
        if len(data) == whole:
            return Plain(head, data[end + 4 :], time_limit)
        if len(data) > whole:
            return data
        self._held, self._whole, self.time_limit = bytearray(data), whole, time_limit
        return None

    def rest(self, data: bytes = b"") -> bytes:
        """The held bytes and the new ones; the buffer is empty afterwards."""
        held, self._held = self._held, bytearray()
        return bytes(held) + data

    def __bool__(self) -> bool:
        """Whether a request is arriving."""
        return bool(self._held)


def http_response(status: HTTPStatus, content_type: bytes, body: bytes) -> bytes:
    """The bytes of an HTTP response; the connection stays open."""
    return b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nDate: %s\r\n\r\n%s" % (
        status,
        status.phrase.encode(),
        content_type,
        len(body),
        _date(int(time.time())),
        body,
    )


@lru_cache(1)
def _date(seconds: int) -> bytes:
    return formatdate(seconds, usegmt=True).encode()
