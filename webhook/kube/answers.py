"""The JSON of an API server's answers.

Law: one object never makes the others unreadable. Users may write JSON of any form into a field such as the
`opaque.parameters` of a ResourceClaimTemplate, and API servers return it as it is: nested thousands of levels
deep, with half of a surrogate pair, or with bytes that are not UTF-8. orjson refuses all of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import orjson

from policies.kube.json import MAX_LEVELS

LEVELS: Final = MAX_LEVELS + 10
"""The levels of an answer that are read: one object of it may still have more than a review reads, which then
says so, and orjson can write them."""
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)
"""A string also ends with the text: otherwise each of its escaped quotes would begin another search."""


def parse(raw: bytes) -> Any:
    """The value of a JSON text, with null in place of what is nested deeper than LEVELS, and U+FFFD in place
    of what is no character. Raises orjson.JSONDecodeError for anything else that is not JSON."""
    try:
        value = orjson.loads(raw)
        orjson.dumps(value)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return orjson.loads(b"".join(_readable(raw)))
    return value


def _readable(raw: bytes) -> Iterator[bytes]:
    """The parts of the text that orjson reads."""
    level, end = 0, 0
    for found in _TOKEN.finditer(raw):
        token = found[0]
        if token in (b"[", b"{"):
            level += 1
            if level == LEVELS + 1:
                yield raw[end : found.start()]
        elif token in (b"]", b"}"):
            level -= 1
            if level == LEVELS:
                yield b"null"
                end = found.end()
        elif level <= LEVELS and (text := _readable_text(token)) != token:
            yield raw[end : found.start()]
            yield text
            end = found.end()
    if level <= LEVELS:
        yield raw[end:]


_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def _readable_text(token: bytes) -> bytes:
    """A JSON string with U+FFFD in place of what is no character."""
    if b"\\u" not in token and token.isascii():
        return token
    text = _ESCAPE.sub(lambda found: b"\\ufffd" if found["half"] else found[0], token)
    return text.decode(errors="replace").encode()
