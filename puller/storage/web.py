"""Plain web servers: GET, ranged where they know ranges.

The status never shows a server's text (a body, a header, the target of a redirect): the puller's status is
open, and a config may name servers that its writer cannot reach.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from yarl import URL

from puller.reasons import Reason
from puller.storage.base import Limits, StorageError, safe_path
from puller.storage.connection import Response
from puller.storage.objects import RemoteObject, Source, archive_kind
from puller.storage.webclient import WebClient, body_of, web_url

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_LENGTH = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Answer:
    """An object, by its answer. `size`: of the whole object, None if it comes in chunks;
    `version`: another one for another content; `kind`: its content type; `sound`: whether it is sent as it
    is stored; `ranges`: whether it is the part that was asked for."""

    size: int | None
    etag: str
    version: str
    kind: str
    sound: bool
    ranges: bool
    response: Response = field(repr=False)

    def chunks(self, least: int) -> AsyncGenerator[bytes]:
        """The body, in pieces of `least` bytes or more. Raises StorageError."""
        return body_of(self.response, least)


@dataclass(frozen=True, slots=True)
class WebStore:
    """One web address, its query kept (signed URLs live there); `key`s are paths below it. `head`: the
    bytes of the one object that came with the first answer; they are given once."""

    client: WebClient
    url: URL
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    head: bytearray = field(default_factory=bytearray, repr=False)

    @asynccontextmanager
    async def get(
        self, key: str, span: tuple[int, int] | None = None, etag: str = ""
    ) -> AsyncGenerator[Answer]:
        """The object, or the bytes [start, end) of it. Raises StorageError; RangeError if the server
        reports that there are no such bytes."""
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
        """See Origin. Bytes that came with the first answer are not requested again."""
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
    """The body if it is short and complete, else no bytes: they are fetched later."""
    if not answer.ranges and (answer.size is None or answer.size > most):
        return b""
    held = b""
    with suppress(StorageError):
        async for piece in answer.chunks(most):
            held += piece
    return held if len(held) == min(answer.size or 0, most) else b""


class RangeError(Exception):
    """The server has no such bytes: the object is empty."""


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


def _answer(response: Response, span: tuple[int, int] | None) -> Answer:
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
            "the storage sends neither a Content-Length nor chunks: the end of the file is unknown.",
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
