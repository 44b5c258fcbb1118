"""The parts of a model from any storage: objects with a size, in stores that give their bytes."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from puller.reasons import Reason
from puller.storage.base import Limits, StorageError

if TYPE_CHECKING:
    from obstore import Bytes

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
"""Formats that are zip or gzip inside but are loaded whole, for any content type that a server guesses."""

MAX_NAMES = 32 << 20
"""Characters of all keys below a prefix."""
PAGES = 4
"""Stall timeouts that a thousand keys of a listing may take: a store may send them in several pages."""


_AZURE_HOST = re.compile(r"([a-z0-9-]+)\.blob\.core\.windows\.net")


class Origin(Protocol):
    """Where objects are."""

    def pieces(
        self, item: RemoteObject, start: int, end: int, limits: Limits, least: int
    ) -> AsyncGenerator[Bytes | bytes]:
        """The bytes [start, end) of an object, `least` or more at a time, over one connection. Raises
        StorageError."""
        ...


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """One object: `key` in its store, `path` below the model's directory, `size` in bytes. `version` must
    be in every answer to a GET of a plain web server's object, since not all servers respect If-Match. With
    `sized` False the object comes in chunks, and its size is not known before the last one came."""

    store: Origin = field(compare=False, repr=False)
    key: str
    path: str
    size: int
    etag: str = ""
    sha256: str = ""
    ranges: bool = True
    version: str = ""
    sized: bool = True


@dataclass(frozen=True, slots=True)
class Layer:
    """An archive ("tar", "tar.gz", "tar.zst") that goes over those before it. With `subtree`, only that
    directory of it counts: it is an image's."""

    item: RemoteObject
    kind: str
    subtree: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """The objects to fetch. With `archive` set ("tar", "tar.gz", "tar.zst", "zip") there is one object.
    `whole`: the content of the one object, if it came with the answer to the first request. `layers`:
    archives to unpack before the objects are fetched. `digest`: SHA-256 of the manifest that lists these."""

    objects: tuple[RemoteObject, ...]
    archive: str = ""
    whole: bytes = field(default=b"", compare=False, repr=False)
    layers: tuple[Layer, ...] = ()
    digest: str = ""

    @property
    def size(self) -> int:
        return sum(item.size for item in self.objects) + sum(layer.item.size for layer in self.layers)

    @property
    def sized(self) -> bool:
        return all(item.sized for item in self.objects)


def azure_account(uri: str) -> str:
    """The storage account in an https:// URI of Azure's blobs; empty for any other URI."""
    parts = urlsplit(uri)
    found = _AZURE_HOST.fullmatch(parts.hostname or "") if parts.scheme == "https" else None
    return found[1] if found else ""


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


def check_listed(count: int, text: int, limits: Limits) -> None:
    if count > limits.max_entries or text > MAX_NAMES:
        raise StorageError(
            Reason.TOO_MANY_OBJECTS,
            f"there are more than {limits.max_entries} objects, or {MAX_NAMES >> 20} MiB of their names.",
        )
