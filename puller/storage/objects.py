"""The objects that make up a model, in any storage."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from puller.reasons import StatusReason
from puller.storage.base import Limits, StorageError
from puller.store import is_reserved

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
"""Formats that servers load whole, although they are zip or gzip inside."""

MAX_NAMES = 32 << 20
"""Characters of all keys below a prefix."""
PAGES = 4
"""Stall timeouts for a thousand keys of a listing: a store may send them in several pages."""

_AZURE_HOST = re.compile(r"([a-z0-9-]+)\.blob\.core\.windows\.net")


class ObjectStore(Protocol):
    """Returns the content of objects."""

    def read(
        self, item: RemoteObject, start: int, end: int, limits: Limits, min_chunk: int
    ) -> AsyncGenerator[Bytes | bytes]:
        """The bytes [start, end) of an object, `min_chunk` or more at a time, over one connection. Raises
        StorageError."""
        ...


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """One object: `key` in its store, `path` below the model's directory, `size` in bytes. `version`: the
    version that each response of a web server must have, since not all servers respect If-Match. `sized`:
    False if the size is unknown until the last chunk. `revision`: of a listing without ETags; files of
    another revision are not kept."""

    store: ObjectStore = field(compare=False, repr=False)
    key: str
    path: str
    size: int
    etag: str = ""
    sha256: str = ""
    ranges: bool = True
    version: str = ""
    sized: bool = True
    revision: str = ""


@dataclass(frozen=True, slots=True)
class Layer:
    """An archive ("tar", "tar.gz", "tar.zst") that is unpacked over those before it. `subtree`: the directory
    that is unpacked of a layer of an image."""

    item: RemoteObject
    kind: str
    subtree: str = ""


@dataclass(frozen=True, slots=True)
class StoredContent:
    """The content of a model: `layers`, which are unpacked first, and `objects`. `zipped`: the only object is
    a zip archive. `whole`: the content of the only object, if it came with the first response. `digest`:
    SHA-256 of the manifest that lists the content."""

    objects: tuple[RemoteObject, ...]
    layers: tuple[Layer, ...] = ()
    zipped: bool = False
    whole: bytes = field(default=b"", compare=False, repr=False)
    digest: str = ""

    @property
    def all_objects(self) -> tuple[RemoteObject, ...]:
        return (*(layer.item for layer in self.layers), *self.objects)

    @property
    def size(self) -> int:
        return sum(item.size for item in self.all_objects)

    @property
    def sized(self) -> bool:
        return all(item.sized for item in self.objects)


def check_name(name: str) -> None:
    """Raises StorageError for the name of a model's only file if it is reserved."""
    if is_reserved(name):
        raise StorageError(StatusReason.HOSTILE_PATH, f"a model's only file must not have the name {name!r}.")


def single_object(item: RemoteObject, kind: str, whole: bytes = b"") -> StoredContent:
    """The content of a model that is one object. `kind`: from `archive_kind`. Raises StorageError."""
    if not kind:
        check_name(item.path)
    if kind.startswith("tar"):
        return StoredContent((), (Layer(item, kind),))
    return StoredContent((item,), zipped=kind == "zip", whole=whole)


def azure_account(uri: str) -> str:
    """The storage account in an https:// URI of Azure's blobs; empty for any other URI."""
    parts = urlsplit(uri)
    found = _AZURE_HOST.fullmatch(parts.hostname or "") if parts.scheme == "https" else None
    return found[1] if found else ""


def archive_kind(name: str, content_type: str = "") -> str:
    """ "tar", "tar.gz", "tar.zst" or "zip" by the suffix, else by the content type; "" for other files."""
    lower = name.lower()
    for suffix, kind in _SUFFIXES:
        if lower.endswith(suffix):
            return kind
    return "" if lower.endswith(_NOT_ARCHIVES) else _TYPES.get(content_type.split(";")[0].strip().lower(), "")


def selected(path: str, files: tuple[str, ...]) -> bool:
    """Whether a file is part of the model: the globs match it (`*` also matches `/`; no globs match all
    paths), and its name is not reserved."""
    if is_reserved(path):
        return False
    if not files:
        return True
    names, patterns = _globs(files)
    return path in names or any(pattern.match(path) for pattern in patterns)


@lru_cache(maxsize=64)
def _globs(files: tuple[str, ...]) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """Globs without wildcards, and expressions for the others."""
    names = frozenset(glob for glob in files if not set("*?[") & set(glob))
    return names, tuple(re.compile(translate(glob)) for glob in dict.fromkeys(files) if glob not in names)


def check_listing(count: int, text: int, limits: Limits) -> None:
    """Raises StorageError if a listing has too many objects, or too many characters in their names."""
    if count > limits.max_entries or text > MAX_NAMES:
        raise StorageError(
            StatusReason.TOO_MANY_OBJECTS,
            f"there are more than {limits.max_entries} objects, or {MAX_NAMES >> 20} MiB of their names.",
        )
