"""Archives, unpacked as they stream by, into one directory and nowhere else.

Law: an archive is hostile until proven otherwise. No entry leaves the tree, by its path or through a
link; links are made last, after all files, and must end inside; devices are refused; the number of
entries and the expansion are bounded, so that a bomb fails before it fills the node.
"""

from __future__ import annotations

import errno
import gzip
import lzma
import os
import posixpath
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

import zstandard

from puller.reasons import Reason
from puller.storage.base import Limits, StorageError, human, safe_path
from puller.storage.source import wanted
from puller.store import reserved

_BLOCK = 1 << 20
_TAR_BLOCK = 256 << 10
_MAX_LINK = 4096
_MAX_EXTENDED = 1 << 20
_BAD_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    OSError,
    EOFError,
    ValueError,
    NotImplementedError,
    RuntimeError,
)


class _Entry(tarfile.TarInfo):
    """A tar header that refuses to read more, in extended headers and maps of holes, than any needs."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        stream = archive.fileobj
        archive.fileobj = _Headers(stream)  # type: ignore[assignment, arg-type]
        try:
            return super()._proc_member(archive)  # type: ignore[misc, no-any-return]
        finally:
            archive.fileobj = stream


class _Headers:
    """The stream, as far as headers of one entry may go."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._left = _MAX_EXTENDED
        self.tell = stream.tell

    def read(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise StorageError(
                Reason.HOSTILE_ARCHIVE, f"an entry has over {human(_MAX_EXTENDED)} of headers."
            )
        return self._stream.read(size)


@dataclass
class Unpacker:
    """Writes entries below `into`. `consumed` tells the archive bytes read so far, `claim` is called with
    the unpacked total before each write and may raise StorageError; `stopped` ends the work early."""

    into: Path
    files: tuple[str, ...]
    limits: Limits
    consumed: Callable[[], int]
    claim: Callable[[int], None]
    stopped: Callable[[], bool] = lambda: False
    _entries: int = 0
    _written: int = 0
    _symlinks: dict[str, str] = field(default_factory=dict)

    def tar(self, stream: IO[bytes], kind: str) -> None:
        """Unpack "tar", "tar.gz" or "tar.zst" from a stream that cannot seek. Raises StorageError."""
        try:
            plain = _decompressed(stream, kind)
            with tarfile.open(fileobj=plain, mode="r|", bufsize=_TAR_BLOCK, tarinfo=_Entry) as archive:
                for entry in archive:
                    self._tar_entry(archive, entry)
                    archive.members = []  # type: ignore[attr-defined]  # or every entry stays in memory
            plain.read(_BLOCK)  # past the padding, where a compressor's checksum stands
            while stream.read(_BLOCK):
                pass
        except (
            tarfile.TarError,
            zlib.error,
            zstandard.ZstdError,
            EOFError,
            gzip.BadGzipFile,
            RecursionError,
        ) as error:
            raise StorageError(
                Reason.BAD_ARCHIVE, f"the {kind} archive cannot be read: {error or 'it ends early'}."
            ) from None
        self._finish()

    def zip(self, path: Path) -> None:
        """Unpack a zip file. Raises StorageError."""
        try:
            with zipfile.ZipFile(path) as archive:
                for entry in archive.infolist():
                    self._zip_entry(archive, entry)
        except _BAD_ZIP as error:
            # bz2, and seeking to where the directory lies, fail as if a file could not be read.
            if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
                raise
            raise StorageError(
                Reason.BAD_ARCHIVE, f"the zip archive cannot be read: {error or 'it ends early'}."
            ) from None
        self._finish()

    def _tar_entry(self, archive: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        name = self._admit(entry.name)
        if not name:
            return
        if entry.isdir():
            self._directory(name)
        elif entry.issym():
            self._symlink(name, entry.linkname)
        elif entry.islnk():
            self._hardlink(name, self._clean(entry.linkname))
        elif entry.isreg():
            content = archive.extractfile(entry)
            if content is None:
                raise StorageError(Reason.BAD_ARCHIVE, f"{name!r} has no content.")
            self._file(name, content, executable=bool(entry.mode & stat.S_IXUSR))
        else:
            raise StorageError(Reason.HOSTILE_ARCHIVE, f"{name!r} is a device or a pipe.")

    def _zip_entry(self, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
        name = self._admit(entry.filename)
        if not name:
            return
        mode = entry.external_attr >> 16
        if entry.is_dir():
            self._directory(name)
        elif stat.S_ISLNK(mode):
            with archive.open(entry) as content:
                self._symlink(name, content.read(_MAX_LINK).decode(errors="replace"))
        elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
            with archive.open(entry) as content:
                self._file(name, content, executable=bool(mode & stat.S_IXUSR))
        else:
            raise StorageError(Reason.HOSTILE_ARCHIVE, f"{name!r} is a device or a pipe.")

    def _admit(self, raw: str) -> str:
        """The entry's clean name, "" for one to pass over."""
        self._entries += 1
        if self._entries > self.limits.max_entries:
            raise StorageError(
                Reason.ARCHIVE_BOMB, f"the archive has more than {self.limits.max_entries} entries."
            )
        name = self._clean(raw)
        return name if name and wanted(name, self.files) and not reserved(name) else ""

    @staticmethod
    def _clean(raw: str) -> str:
        """`./a/b/` -> `a/b`; "" for the root itself. Raises StorageError for a path that leads outside."""
        if raw.startswith("/") or ".." in raw.split("/"):
            raise StorageError(Reason.HOSTILE_ARCHIVE, f"{raw!r} leads out of the model's directory.")
        name = posixpath.normpath(raw)
        return "" if name == "." else safe_path(name)

    def _directory(self, name: str) -> None:
        self._parent(f"{name}/")
        (self.into / name).mkdir(exist_ok=True)

    def _parent(self, name: str) -> None:
        """Make the directories above. None can be a link: links come last."""
        try:
            (self.into / name).parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise StorageError(Reason.BAD_ARCHIVE, f"{name!r} lies below something that is a file.") from None

    def _file(self, name: str, content: IO[bytes], *, executable: bool) -> None:
        self._parent(name)
        path = self.into / name
        if path.is_dir():
            raise StorageError(Reason.BAD_ARCHIVE, f"{name!r} is both a file and a directory.")
        path.unlink(missing_ok=True)  # a later entry of the same name wins, as with tar itself
        self._symlinks.pop(name, None)
        with path.open("xb", buffering=0) as file:
            while block := content.read(_BLOCK):
                self._account(len(block))
                _write(file, block)
        path.chmod(0o755 if executable else 0o644)

    def _account(self, size: int) -> None:
        if self.stopped():
            raise StorageError(Reason.CANCELLED, "the model is no longer wanted.")
        self._written += size
        if self._written > self.limits.free_expansion:
            archived = max(self.consumed(), 1)
            if self._written > archived * self.limits.max_expansion:
                raise StorageError(
                    Reason.ARCHIVE_BOMB,
                    f"{human(archived)} of archive gave over {human(self._written)}: more than"
                    f" {self.limits.max_expansion} bytes for one.",
                )
        self.claim(self._written)

    def _symlink(self, name: str, target: str) -> None:
        if target.startswith("/") or not target.isprintable() or not target:
            raise StorageError(
                Reason.HOSTILE_ARCHIVE, f"the link {name!r} leads out of the model's directory."
            )
        self._symlinks[name] = target

    def _hardlink(self, name: str, target: str) -> None:
        if not target or not (self.into / target).is_file():
            raise StorageError(
                Reason.HOSTILE_ARCHIVE, f"the link {name!r} leads to nothing that came before it."
            )
        if name != target:
            self._parent(name)
            (self.into / name).unlink(missing_ok=True)
            os.link(self.into / target, self.into / name)

    def _finish(self) -> None:
        """Make the links, then follow each: with all in place, where it ends is where it ends."""
        for name, target in self._symlinks.items():
            path = self.into / name
            if any(str(parent) in self._symlinks for parent in PurePosixPath(name).parents) or path.is_dir():
                raise StorageError(
                    Reason.HOSTILE_ARCHIVE, f"the link {name!r} stands where something else is."
                )
            self._parent(name)
            path.unlink(missing_ok=True)
            path.symlink_to(target)
        root = self.into.resolve()
        for name in self._symlinks:
            try:
                end = (self.into / name).resolve(strict=False)
            except (OSError, RuntimeError):
                raise StorageError(Reason.HOSTILE_ARCHIVE, f"the link {name!r} leads in a circle.") from None
            if not end.is_relative_to(root):
                raise StorageError(
                    Reason.HOSTILE_ARCHIVE, f"the link {name!r} leads out of the model's directory."
                )


def _decompressed(stream: IO[bytes], kind: str) -> IO[bytes]:
    if kind == "tar.gz":
        return gzip.GzipFile(fileobj=stream, mode="rb")  # type: ignore[return-value]
    if kind == "tar.zst":
        return zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
            stream, read_across_frames=True
        )
    return stream


def _write(file: BinaryIO | IO[bytes], block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[file.write(view) :]
