"""Web servers: GET, with ranges if the server supports them.

The status never contains text from a server (a body, a header, the target of a redirect): everybody can read
the status, and a config may contain servers that its author cannot reach.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote, urlsplit

from aiohttp import ClientResponse
from yarl import URL

from puller.reasons import StatusReason
from puller.storage.base import Limits, StorageError, safe_path
from puller.storage.objects import RemoteObject, StoredContent, archive_kind, single_object
from puller.storage.webclient import WebClient, body, check_status, web_url

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_LENGTH = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class ObjectResponse:
    """The response for an object. `size`: of the whole object, None if it comes in chunks. `version`: changes
    with the content. `compressed`: it has a Content-Encoding. `ranges`: it has only the requested range."""

    size: int | None
    etag: str
    version: str
    content_type: str
    compressed: bool
    ranges: bool
    response: ClientResponse = field(repr=False)


@dataclass(frozen=True, slots=True)
class WebStore:
    """One URL, with its query, which may have a signature; an ObjectStore. `key`s are paths below the URL.
    `prefetched`: the first bytes of the only object, if they came with the first response; used once.
    `encoded`: its first response had a Content-Encoding, which is part of the archive."""

    client: WebClient
    url: URL
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    prefetched: bytearray = field(default_factory=bytearray, repr=False)
    encoded: bool = False

    @asynccontextmanager
    async def get(
        self, key: str, span: tuple[int, int] | None = None, etag: str = ""
    ) -> AsyncGenerator[ObjectResponse]:
        """The object, or its bytes [start, end). Raises StorageError, or RangeError if it has no such
        bytes."""
        headers = dict(self.headers)
        if span is not None:
            headers["Range"] = f"bytes={span[0]}-{span[1] - 1}"
        if etag and not etag.startswith("W/"):
            headers["If-Match"] = etag
        url = self.url.joinpath(quote(key), encoded=True) if key else self.url
        async with self.client.get(url, headers) as response:
            if response.status == 412:
                raise _changed("an object was replaced while it was being read.")
            if response.status == 416 and span is not None:
                raise RangeError
            check_status(response.status, "storage", "such object")
            yield _object_response(response, span)

    async def read(
        self, item: RemoteObject, start: int, end: int, limits: Limits, min_chunk: int
    ) -> AsyncGenerator[bytes]:
        if start == 0 and self.prefetched:
            first = bytes(self.prefetched[:end])
            self.prefetched.clear()
            yield first
            start = len(first)
        if start >= end:
            return
        try:
            async with self.get(item.key, (start, end) if item.ranges else None, item.etag) as found:
                if start and not found.ranges:
                    raise StorageError(
                        StatusReason.STORAGE_UNAVAILABLE, "the storage no longer supports ranges."
                    )
                if item.sized and found.size not in (None, item.size):
                    raise _changed(f"{item.path} has {found.size} bytes, not {item.size}.")
                if item.version and found.version != item.version:
                    raise _changed(f"{item.path} was replaced while it was being read.")
                if found.compressed and not (self.encoded or item.sha256):
                    raise _compressed(item.path)
                received = start
                async for chunk in body(found.response, min(min_chunk, end - start)):
                    received += len(chunk)
                    yield chunk
                if item.sized and found.size is None and received < end:  # such as an error page in chunks
                    raise _changed(f"{item.path} has {received} bytes, not {item.size}.")
        except RangeError:
            raise _changed(f"{item.path} became shorter.") from None


async def web_object(uri: str, web: WebClient) -> StoredContent:
    """The object of a web server at this URI. GET is used: a URL that is signed for GET does not allow
    HEAD."""
    name = unquote(urlsplit(uri).path).strip("/").rsplit("/", 1)[-1] or "model"
    path = safe_path(name)
    store = WebStore(web, web_url(uri))
    try:
        async with store.get("", (0, web.limits.chunk_size)) as found:
            store.prefetched.extend(await _prefetch(found, web.limits.chunk_size))
    except RangeError:
        async with store.get("") as found:  # an empty object has no first byte
            pass
    kind = archive_kind(name, found.content_type)
    if found.compressed and not kind and not path.endswith(".gz"):
        raise _compressed(path)
    store = replace(store, encoded=found.compressed)
    sized = found.size is not None
    item = RemoteObject(
        store, "", path, found.size or 0, found.etag, ranges=found.ranges, version=found.version, sized=sized
    )
    complete = sized and len(store.prefetched) == item.size
    return single_object(item, kind, bytes(store.prefetched) if complete else b"")


async def _prefetch(found: ObjectResponse, limit: int) -> bytes:
    """The body, if it is short and complete."""
    if not found.ranges and (found.size is None or found.size > limit):
        return b""
    content = b""
    with suppress(StorageError):
        async for chunk in body(found.response, limit):
            content += chunk
    return content if len(content) == min(found.size or 0, limit) else b""


class RangeError(Exception):
    """The server has no such bytes: the object is empty."""


def _changed(message: str) -> StorageError:
    return StorageError(StatusReason.SOURCE_CHANGED, message)


def _compressed(path: str) -> StorageError:
    return StorageError(
        StatusReason.STORAGE_UNAVAILABLE, f"the server sends {path} compressed, which was not requested."
    )


def _object_response(response: ClientResponse, span: tuple[int, int] | None) -> ObjectResponse:
    headers = response.headers
    length = headers.get("Content-Length", "")
    size = int(length) if _LENGTH.fullmatch(length) else None
    ranges = span is not None and response.status == 206
    if response.status == 206:
        content_range = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
        if content_range is None or span is None or int(content_range[1]) != span[0]:
            raise StorageError(
                StatusReason.STORAGE_UNAVAILABLE,
                "the storage sends a range that was not requested.",
                transient=True,
            )
        size = int(content_range[3])
    elif size is None and headers.get("Transfer-Encoding", "").lower() != "chunked":
        raise StorageError(
            StatusReason.STORAGE_UNAVAILABLE,
            "the storage sends neither a Content-Length nor chunks: the end of the file is unknown.",
        )
    etag = headers.get("ETag", "")
    return ObjectResponse(
        size=size,
        etag=etag,
        version=etag or headers.get("Last-Modified", ""),
        content_type=headers.get("Content-Type", ""),
        compressed=headers.get("Content-Encoding", "identity").lower() != "identity",
        ranges=ranges,
        response=response,
    )
