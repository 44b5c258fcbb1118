"""Object stores of clouds, with obstore: the objects below a prefix, and the content of an object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import obstore
from obstore import Bytes
from obstore.exceptions import BaseError, NotSupportedError

from puller.reasons import StatusReason
from puller.storage.addresses import check_endpoint
from puller.storage.base import Limits, StorageError, safe_path
from puller.storage.locate import Location, Store, storage_error
from puller.storage.objects import (
    PAGES,
    RemoteObject,
    StoredContent,
    archive_kind,
    check_listing,
    single_object,
)


@dataclass(frozen=True, slots=True)
class CloudStore:
    """A bucket or container; an ObjectStore. `etags`: of the objects that are read in parts. Not all stores
    respect If-Match, and not all list the ETag that they respond with."""

    store: Store
    etags: dict[str, str] = field(default_factory=dict)

    async def read(
        self, item: RemoteObject, start: int, end: int, limits: Limits, min_chunk: int
    ) -> AsyncGenerator[Bytes | bytes]:
        options: Any = {"if_match": item.etag} if item.etag and not item.etag.startswith("W/") else {}
        if item.ranges:
            options["range"] = (start, end)
        transient = False
        try:
            async with asyncio.timeout(limits.stall_timeout):
                result = await obstore.get_async(self.store, item.key, options=options)
            if result.meta["size"] != item.size:
                raise StorageError(
                    StatusReason.SOURCE_CHANGED,
                    f"{item.path} has {result.meta['size']} bytes, not {item.size}.",
                )
            etag = result.meta.get("e_tag") or ""
            if item.size > limits.chunk_size and self.etags.setdefault(item.key, etag) != etag:
                raise StorageError(
                    StatusReason.SOURCE_CHANGED, f"{item.path} was replaced while it was being read."
                )
            # If no whole chunk comes in time, the next request, with min_chunk 1, shows whether a byte does.
            transient = min_chunk > 1
            stream = aiter(result.stream(min_chunk_size=min_chunk))
            while True:
                async with asyncio.timeout(limits.stall_timeout):
                    chunk = await anext(stream, None)
                if chunk is None:
                    return
                yield chunk  # typed as bytes in obstore's stub; it is obstore.Bytes, a buffer
        except TimeoutError:
            message = f"no byte came in {limits.stall_timeout:g} s."
            raise StorageError(StatusReason.STORAGE_TIMEOUT, message, transient=transient) from None
        except (BaseError, OSError, ValueError) as error:
            raise storage_error(error) from None


async def resolve(location: Location, limits: Limits) -> list[RemoteObject] | StoredContent | None:
    """The objects below a location, or the one object of that name, or nothing. Raises StorageError."""
    try:
        if location.endpoint and not limits.allow_link_local:
            await check_endpoint(location.endpoint)
        if archive_kind(location.name):
            return await _single(location, limits) or await _listing(location, limits)
        return await _listing(location, limits) or await _single(location, limits)
    except (BaseError, OSError, ValueError) as error:
        raise storage_error(error) from None


async def _listing(location: Location, limits: Limits) -> list[RemoteObject]:
    """All objects below the key. With the slash at the end, `m1` does not match `m10/…`."""
    prefix = f"{location.key}/" if location.key else ""
    store = CloudStore(location.store)
    objects: list[RemoteObject] = []
    text = 0
    batches = aiter(obstore.list(location.store, prefix or None, chunk_size=1000))
    while True:
        try:
            async with asyncio.timeout(PAGES * limits.stall_timeout):
                batch = await anext(batches)
        except StopAsyncIteration:
            return objects
        for meta in batch:
            path = str(meta["path"]).removeprefix(prefix)
            if path == location.key and meta["size"] == 0:
                continue  # the placeholder of the prefix itself
            text += len(path) + len(prefix)
            objects.append(
                RemoteObject(store, meta["path"], safe_path(path), meta["size"], meta.get("e_tag") or "")
            )
        check_listing(len(objects), text, limits)


async def _single(location: Location, limits: Limits) -> StoredContent | None:
    """The object with exactly this key, if it exists. GET is used, since HEAD does not return the content
    type."""
    if not location.key:
        return None
    ranges = True
    try:
        async with asyncio.timeout(limits.stall_timeout):
            try:
                result = await obstore.get_async(location.store, location.key, options={"range": (0, 1)})
                await result.bytes_async()  # read it, so that the connection can be used again
            except BaseError as error:
                ranges = not isinstance(error, NotSupportedError)
                if ranges and "416" not in str(error):
                    raise
                # The store does not support ranges, or the object is empty and has no first byte.
                result = await obstore.get_async(location.store, location.key)
    except FileNotFoundError:
        return None
    kind = archive_kind(location.name, str(result.attributes.get("Content-Type", "")))
    item = RemoteObject(
        CloudStore(location.store),
        location.key,
        safe_path(location.name),
        result.meta["size"],
        result.meta.get("e_tag") or "",
        ranges=ranges,
    )
    return single_object(item, kind)
