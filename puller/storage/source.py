"""What a storage URI holds: the list of objects that make up a model.

A URI names a prefix (all objects below it, and nothing of a sibling that merely starts alike), or one
object, which may be an archive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import obstore
import orjson
from obstore.exceptions import BaseError, NotSupportedError

from puller.reasons import Reason
from puller.storage.base import Limits, StorageError, safe_path
from puller.storage.locate import Location, Store, explain, locate, web
from puller.store import reserved

_SUFFIXES = (
    (".tar", "tar"),
    (".tar.gz", "tar.gz"),
    (".tgz", "tar.gz"),
    (".tar.zst", "tar.zst"),
    (".tzst", "tar.zst"),
    (".zip", "zip"),
)
_TYPES = {
    "application/x-tar": "tar",
    "application/tar": "tar",
    "application/gzip": "tar.gz",
    "application/x-gzip": "tar.gz",
    "application/x-gtar": "tar.gz",
    "application/x-compressed-tar": "tar.gz",
    "application/zstd": "tar.zst",
    "application/zip": "zip",
    "application/x-zip-compressed": "zip",
}
_NOT_ARCHIVES = (
    ".gz",
    ".zst",
    ".pt",
    ".pth",
    ".npz",
    ".keras",
    ".mar",
    ".jar",
    ".whl",
    ".nemo",
    ".bin",
    ".onnx",
)
"""Formats that are zip or gzip inside but are loaded whole, whatever content type a server guesses."""

_HF_TIMEOUT = aiohttp.ClientTimeout(total=30)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """One object: `key` in its store, `path` below the model's directory, `size` in bytes. `version` is what
    every answer to a GET must say of a plain web server's object, since not all of these heed If-Match."""

    store: Store = field(compare=False, repr=False)
    key: str
    path: str
    size: int
    etag: str = ""
    sha256: str = ""
    ranges: bool = True
    version: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """What is to be fetched. With `archive` set ("tar", "tar.gz", "tar.zst", "zip") there is one object."""

    objects: tuple[RemoteObject, ...]
    archive: str = ""

    @property
    def size(self) -> int:
        return sum(item.size for item in self.objects)


async def resolve(uri: str, files: tuple[str, ...], env: Mapping[str, str], limits: Limits) -> Source:
    """List what `uri` holds, narrowed to the globs in `files`. Raises StorageError."""
    try:
        if uri.startswith("hf://"):
            return _tree(await _hub(uri, env, limits), files)
        location = locate(uri, env, limits)
        if not location.listable:
            return await _object(location)
        if archive_kind(location.name):
            return await _single(location) or _tree(await _listing(location, limits), files)
        objects = await _listing(location, limits)
        if objects:
            return _tree(objects, files)
        single = await _single(location)
    except (BaseError, OSError, ValueError, aiohttp.ClientError) as error:
        raise explain(error) from None
    if single is None:
        raise StorageError(Reason.NOT_FOUND, f"neither an object nor a prefix is there: {uri}")
    return single


def archive_kind(name: str, content_type: str = "") -> str:
    """ "tar", "tar.gz", "tar.zst" or "zip", by the suffix, else by the content type; "" for no archive."""
    lower = name.lower()
    for suffix, kind in _SUFFIXES:
        if lower.endswith(suffix):
            return kind
    return "" if lower.endswith(_NOT_ARCHIVES) else _TYPES.get(content_type.split(";")[0].strip().lower(), "")


def wanted(path: str, files: tuple[str, ...]) -> bool:
    """Whether the globs pick this path. As in a shell, but `*` crosses `/`; no globs pick everything."""
    if not files:
        return True
    names, patterns = _globs(files)
    return path in names or any(pattern.match(path) for pattern in patterns)


@lru_cache(maxsize=64)
def _globs(files: tuple[str, ...]) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """Globs that name one path each, and expressions for those that do not."""
    names = frozenset(glob for glob in files if not set("*?[") & set(glob))
    return names, tuple(re.compile(translate(glob)) for glob in dict.fromkeys(files) if glob not in names)


def _tree(objects: Iterable[RemoteObject], files: tuple[str, ...]) -> Source:
    """The objects of a prefix, without directory placeholders and our own kind of notes."""
    found = list(objects)
    parents = {parent for item in found for parent in _parents(item.path)}
    kept: list[RemoteObject] = []
    for item in found:
        if item.path in parents:
            if item.size:
                raise StorageError(
                    Reason.HOSTILE_PATH, f"{item.path!r} is both an object and a prefix of others."
                )
        elif wanted(item.path, files) and not reserved(item.path):
            kept.append(item)
    if not kept:
        raise StorageError(
            Reason.NOT_FOUND,
            "no object is picked by the globs in `files`." if files else "there are no objects.",
        )
    return Source(tuple(kept))


def _parents(path: str) -> Iterable[str]:
    while "/" in path:
        path = path.rsplit("/", 1)[0]
        yield path


async def _listing(location: Location, limits: Limits) -> list[RemoteObject]:
    """All objects below the key. The closing slash keeps `m1` from pulling `m10/…`."""
    prefix = f"{location.key}/" if location.key else ""
    objects: list[RemoteObject] = []
    async for batch in obstore.list(location.store, prefix or None, chunk_size=1000):
        for meta in batch:
            path = str(meta["path"]).removeprefix(prefix)
            if path == location.key and meta["size"] == 0:
                continue  # the placeholder of the prefix itself
            objects.append(
                RemoteObject(
                    location.store, meta["path"], safe_path(path), meta["size"], meta.get("e_tag") or ""
                )
            )
        if len(objects) > limits.max_entries:
            raise StorageError(
                Reason.TOO_MANY_OBJECTS, f"more than {limits.max_entries} objects are below {prefix!r}."
            )
    return objects


async def _single(location: Location) -> Source | None:
    """The object of exactly that key, if there is one."""
    try:
        return await _object(location) if location.key else None
    except FileNotFoundError:
        return None


async def _object(location: Location) -> Source:
    """One object by its name. Asked for by GET: HEAD tells no content type, and is not in a URL signed for
    GET."""
    ranges = True
    try:
        result = await obstore.get_async(location.store, location.key, options={"range": (0, 1)})
        await result.bytes_async()  # its one byte, so that the connection may be used again
    except NotSupportedError:
        ranges = False
        result = await obstore.get_async(location.store, location.key)
    except BaseError as error:
        if "416" not in str(error):
            raise
        result = await obstore.get_async(location.store, location.key)  # an empty object has no first byte
    kind = archive_kind(location.name, str(result.attributes.get("Content-Type", "")))
    item = RemoteObject(
        location.store,
        location.key,
        safe_path(location.name),
        result.meta["size"],
        result.meta.get("e_tag") or "",
        ranges=ranges,
        version="" if location.listable else version(result.meta),
    )
    encoding = str(result.attributes.get("Content-Encoding", "identity"))
    if not (location.listable or kind or item.path.endswith(".gz") or encoding == "identity"):
        raise StorageError(
            Reason.STORAGE_UNAVAILABLE, f"the server sends {item.path} as {encoding}, unasked."
        )
    return Source((item,), kind)


def version(meta: Mapping[str, Any]) -> str:
    """What tells one version of an object from another: its ETag, else its date, if it has one."""
    return str(meta["e_tag"] or meta["last_modified"])


async def _hub(uri: str, env: Mapping[str, str], limits: Limits) -> list[RemoteObject]:
    """The files of a Hugging Face repository at one commit, with the digests the hub keeps of large ones."""
    endpoint = (env.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    token = env.get("HF_TOKEN") or env.get("HUGGING_FACE_HUB_TOKEN") or ""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    parts = urlsplit(uri)
    model, _, revision = parts.path.strip("/").partition(":")
    repository = f"{parts.netloc}/{model}"
    url = f"{endpoint}/api/models/{repository}/revision/{quote(revision or 'main', safe='')}?blobs=true"
    async with (
        aiohttp.ClientSession(timeout=_HF_TIMEOUT, headers=headers, trust_env=True) as session,
        session.get(url) as response,
    ):
        if response.status in (401, 403):
            raise StorageError(Reason.ACCESS_DENIED, f"the hub refuses HF_TOKEN for {repository}.")
        if response.status == 404:
            raise StorageError(Reason.NOT_FOUND, f"the hub has no {repository} at {revision or 'main'}.")
        if response.status != 200:
            raise StorageError(
                Reason.STORAGE_UNAVAILABLE, f"the hub answers {response.status}.", passing=True
            )
        commit, files = _hub_files(await response.read())
    store = web(urlsplit(f"{endpoint}/{repository}/resolve/{commit}"), tuple(headers.items()), limits)
    return [RemoteObject(store, path, safe_path(path), size, sha256=digest) for path, size, digest in files]


def _hub_files(answer: bytes) -> tuple[str, list[tuple[str, int, str]]]:
    """The commit, and (path, bytes, SHA-256 if it is a large one) of each file, in the hub's answer."""
    try:
        info = orjson.loads(answer)
        files = [
            (item["rfilename"], item["size"], str((item.get("lfs") or {}).get("sha256", "")))
            for item in info["siblings"]
        ]
        commit = info["sha"]
        sound = _COMMIT.fullmatch(commit) and all(
            isinstance(path, str) and isinstance(size, int) and size >= 0 for path, size, _ in files
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        sound = None
    if not sound:
        raise StorageError(
            Reason.STORAGE_UNAVAILABLE, "the hub's answer names no commit, or no files with sizes."
        )
    return commit, files
