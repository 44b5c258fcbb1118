"""The SHA-256 of downloaded files, compared with those of the store and of the model config."""

from __future__ import annotations

import hashlib
from pathlib import Path

from puller.reasons import StatusReason
from puller.storage import local
from puller.storage.base import StorageError
from puller.storage.objects import StoredContent


def verify(source: StoredContent, into: Path, expected: str) -> None:
    """Compare the files with the digests of the store and of the config. Raises StorageError."""
    digests: dict[str, str] = {}
    for item in source.objects:
        if expected or item.sha256:
            digests[item.path] = _file_sha256(into / item.path)
        if item.sha256 and digests[item.path] != item.sha256:
            raise StorageError(
                StatusReason.DIGEST_MISMATCH, f"{item.path} does not have the SHA-256 its store lists."
            )
    if expected:
        check_digest(digests.popitem()[1] if len(digests) == 1 else listing_sha256(digests), expected)


def tree_sha256(directory: Path) -> str:
    """The digest of a tree as `sha256` of a model gives it: of its one file, or of the listing of all."""
    digests = {path: _file_sha256(file) for file, path, _ in local.listing(directory, ())}
    return digests.popitem()[1] if len(digests) == 1 else listing_sha256(digests)


def check_digest(actual: str, expected: str) -> None:
    """Raises StorageError if the digests differ."""
    if actual != expected:
        raise StorageError(StatusReason.DIGEST_MISMATCH, f"the SHA-256 is {actual}, expected {expected}.")


def listing_sha256(digests: dict[str, str]) -> str:
    """One digest of many files: the SHA-256 of the lines `sha256sum` prints for them, sorted by path."""
    lines = "".join(f"{digests[path]}  {path}\n" for path in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
