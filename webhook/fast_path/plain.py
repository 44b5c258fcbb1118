"""The plain request: a review in the form in which API servers send it, read without a general HTTP server.

Law: when in doubt, it is not plain. A head is plain if every line of it is known and says nothing about the
body but its type and length; whatever else there is goes to the general server, byte for byte, and so does
all that follows on that connection. Nothing is refused here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

HEAD_BYTES: Final = 1024
"""A longer head is not plain."""
HEADS_KEPT: Final = 1024
"""One caller's heads differ in the length of the body alone."""

_FIRST: Final = re.compile(rb"POST /([a-z]+)(?:\?timeout=([0-9a-z.]{1,16}))? HTTP/1\.1")
_LINE: Final = re.compile(rb"([A-Za-z-]+): ([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)")
_LENGTH: Final = re.compile(rb"0|[1-9][0-9]{0,8}")
_NEEDED: Final = frozenset((b"host", b"content-type", b"content-length"))
_IDLE: Final = frozenset(
    (b"user-agent", b"accept", b"accept-encoding", b"traceparent", b"tracestate", b"baggage")
)
"""Headers that change nothing about how a request is read or answered."""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a plain request."""

    endpoint: str
    timeout: str
    """The value of `?timeout=`, empty if there is none."""
    length: int
    """Bytes of the body."""


@lru_cache(HEADS_KEPT)
def read(head: bytes) -> Head | None:
    """A head without the empty line that ends it; None if it is not plain."""
    first, *lines = head.split(b"\r\n")
    asked = _FIRST.fullmatch(first)
    headers: dict[bytes, bytes] = {}
    for line in lines:
        header = _LINE.fullmatch(line)
        if header is None or (name := header[1].lower()) in headers or name not in _NEEDED | _IDLE:
            return None
        headers[name] = header[2]
    if asked is None or not headers.keys() >= _NEEDED or headers[b"content-type"] != b"application/json":
        return None
    if _LENGTH.fullmatch(headers[b"content-length"]) is None:
        return None
    return Head(asked[1].decode(), (asked[2] or b"").decode(), int(headers[b"content-length"]))
