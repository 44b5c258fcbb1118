"""What a storage URI holds: the list of objects that make up a model.

A URI names a prefix (all objects below it, and nothing of a sibling that merely starts alike), or one
object, which may be an archive.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache, partial
from urllib.parse import quote, unquote, urlsplit

import obstore
import orjson
from obstore.exceptions import BaseError, NotSupportedError

from puller.reasons import Reason
from puller.spec import without_secrets
from puller.storage.addresses import check_endpoint
from puller.storage.base import Limits, StorageError, in_thread, safe_path
from puller.storage.locate import Location, Store, explain, locate
from puller.storage.web import RangeError, WebClient, WebStore, body_of, web_url
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

_MAX_HUB = 32 << 20
"""Bytes of the hub's answer about one repository."""
_MAX_NAMES = 32 << 20
"""Characters of all keys below a prefix."""
_PAGES = 4
"""Stall timeouts that a thousand keys of a listing may take: a store may send them in several pages."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """One object: `key` in its store, `path` below the model's directory, `size` in bytes. `version` is what
    every answer to a GET must say of a plain web server's object, since not all of these heed If-Match. With
    `sized` False the object comes in chunks, and its size is not known before the last one came."""

    store: Store | WebStore = field(compare=False, repr=False)
    key: str
    path: str
    size: int
    etag: str = ""
    sha256: str = ""
    ranges: bool = True
    version: str = ""
    sized: bool = True


@dataclass(frozen=True, slots=True)
class Source:
    """What is to be fetched. With `archive` set ("tar", "tar.gz", "tar.zst", "zip") there is one object."""

    objects: tuple[RemoteObject, ...]
    archive: str = ""

    @property
    def size(self) -> int:
        return sum(item.size for item in self.objects)

    @property
    def sized(self) -> bool:
        return all(item.sized for item in self.objects)


async def resolve(
    uri: str, files: tuple[str, ...], env: Mapping[str, str], limits: Limits, web: WebClient
) -> Source:
    """List what `uri` holds, narrowed to the globs in `files`. Raises StorageError."""
    try:
        if uri.startswith("hf://"):
            return await _tree(await _hub(uri, env, limits, web), files, limits)
        location = locate(uri, env, limits)
        if location is None:
            return await _page(uri, web)
        if location.endpoint and not limits.allow_link_local:
            await check_endpoint(location.endpoint)
        if archive_kind(location.name):
            single = await _single(location, limits)
            return single or await _tree(await _listing(location, limits), files, limits)
        objects = await _listing(location, limits)
        if objects:
            return await _tree(objects, files, limits)
        single = await _single(location, limits)
    except (BaseError, OSError, ValueError) as error:
        raise explain(error) from None
    if single is None:
        raise StorageError(
            Reason.NOT_FOUND, f"neither an object nor a prefix is there: {without_secrets(uri)}"
        )
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


async def _tree(objects: list[RemoteObject], files: tuple[str, ...], limits: Limits) -> Source:
    """The objects of a prefix, without directory placeholders and our own kind of notes."""
    stopped = threading.Event()  # many globs on many paths take a while
    return await in_thread(partial(_picked, objects, files, limits, stopped.is_set), stopped.set)


def _picked(
    objects: list[RemoteObject], files: tuple[str, ...], limits: Limits, stopped: Callable[[], bool]
) -> Source:
    parents: set[str] = set()
    for item in objects:
        parents.update(_parents(item.path))
        if len(parents) > limits.max_entries:
            raise StorageError(
                Reason.TOO_MANY_OBJECTS, f"they make more than {limits.max_entries} directories."
            )
    kept: list[RemoteObject] = []
    for item in objects:
        if stopped():
            raise StorageError(Reason.CANCELLED, "the model is no longer wanted.")
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
    text = 0
    batches = aiter(obstore.list(location.store, prefix or None, chunk_size=1000))
    while True:
        try:
            async with asyncio.timeout(_PAGES * limits.stall_timeout):
                batch = await anext(batches)
        except StopAsyncIteration:
            return objects
        for meta in batch:
            path = str(meta["path"]).removeprefix(prefix)
            if path == location.key and meta["size"] == 0:
                continue  # the placeholder of the prefix itself
            text += len(path) + len(prefix)
            objects.append(
                RemoteObject(
                    location.store, meta["path"], safe_path(path), meta["size"], meta.get("e_tag") or ""
                )
            )
        _check_listed(len(objects), text, limits)


def _check_listed(count: int, text: int, limits: Limits) -> None:
    if count > limits.max_entries or text > _MAX_NAMES:
        raise StorageError(
            Reason.TOO_MANY_OBJECTS,
            f"there are more than {limits.max_entries} objects, or {_MAX_NAMES >> 20} MiB of their names.",
        )


async def _single(location: Location, limits: Limits) -> Source | None:
    """The object of exactly that key, if there is one."""
    try:
        return await _object(location, limits) if location.key else None
    except FileNotFoundError:
        return None


async def _object(location: Location, limits: Limits) -> Source:
    """One object by its name. Asked for by GET, for HEAD tells no content type."""
    ranges = True
    async with asyncio.timeout(limits.stall_timeout):
        try:
            result = await obstore.get_async(location.store, location.key, options={"range": (0, 1)})
            await result.bytes_async()  # its one byte, so that the connection may be used again
        except NotSupportedError:
            ranges = False
            result = await obstore.get_async(location.store, location.key)
        except BaseError as error:
            if "416" not in str(error):
                raise
            # An empty object has no first byte.
            result = await obstore.get_async(location.store, location.key)
    kind = archive_kind(location.name, str(result.attributes.get("Content-Type", "")))
    item = RemoteObject(
        location.store,
        location.key,
        safe_path(location.name),
        result.meta["size"],
        result.meta.get("e_tag") or "",
        ranges=ranges,
    )
    return Source((item,), kind)


async def _page(uri: str, web: WebClient) -> Source:
    """What a plain web server has at an address. Asked for by GET: HEAD is not in a URL signed for GET."""
    name = unquote(urlsplit(uri).path).strip("/").rsplit("/", 1)[-1] or "model"
    path = safe_path(name)
    store = WebStore(web, web_url(uri))
    try:
        async with store.get("", (0, 1)) as answer:
            pass
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
    return Source((item,), kind)


async def _hub(uri: str, env: Mapping[str, str], limits: Limits, web: WebClient) -> list[RemoteObject]:
    """The files of a Hugging Face repository at one commit, with the digests the hub keeps of large ones."""
    endpoint = (env.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    token = env.get("HF_TOKEN") or env.get("HUGGING_FACE_HUB_TOKEN") or ""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    parts = urlsplit(uri)
    model, _, revision = parts.path.strip("/").partition(":")
    repository = quote(f"{parts.netloc}/{model}")
    url = f"{endpoint}/api/models/{repository}/revision/{quote(revision or 'main', safe='')}?blobs=true"
    body = bytearray()
    # Answers to calls are short: one that trickles in must not hold a download's place for ever.
    async with asyncio.timeout(_PAGES * limits.stall_timeout), web.get(web_url(url), headers) as response:
        if response.status in (401, 403):
            raise StorageError(Reason.ACCESS_DENIED, f"the hub refuses HF_TOKEN for {repository}.")
        if response.status == 404:
            raise StorageError(Reason.NOT_FOUND, f"the hub has no {repository} at {revision or 'main'}.")
        if response.status != 200:
            raise StorageError(
                Reason.STORAGE_UNAVAILABLE, f"the hub answers {response.status}.", passing=True
            )
        async for chunk in body_of(response, 1):
            body += chunk
            if len(body) > _MAX_HUB:
                raise StorageError(
                    Reason.TOO_MANY_OBJECTS, f"the hub's answer is longer than {_MAX_HUB >> 20} MiB."
                )
    commit, files = _hub_files(bytes(body))
    _check_listed(len(files), 0, limits)
    store = WebStore(web, web_url(f"{endpoint}/{repository}/resolve/{commit}"), headers)
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
