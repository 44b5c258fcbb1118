"""Archives, unpacked from a stream into one directory.

Law: archives are not trusted. No entry leaves the tree, by its path or through a link. Links are created
last, after all files, and must end inside. Devices are refused. The number of entries and directories, their
depth, the expansion (also of skipped entries) and the steps of following links are limited, so a bomb fails
before it fills the node. In memory, only the targets of links grow with the archive, up to a limit. The
unpacker checks often whether it is to stop.
"""

from __future__ import annotations

import errno
import gzip
import lzma
import os
import posixpath
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Self, cast

import zstandard

from puller.files import remove_tree
from puller.quantities import human
from puller.reasons import StatusReason
from puller.storage import zip_directory
from puller.storage.base import MAX_DEPTH, Limits, StorageError, safe_path
from puller.storage.objects import selected

_BLOCK = 1 << 20
_TAR_BLOCK = 256 << 10
_MAX_LINK = 4096
_MAX_LINKS = 32 << 20
"""Characters of all links together, in their names and targets."""
_MAX_FOLLOWED = 40
"""Links that one path may lead through: the kernel follows no more."""
_STEPS_PER_ENTRY = 20
_MAX_EXTENDED = 1 << 20
_MAX_DICTIONARY = 128 << 20
"""Bytes of memory for a decompressor."""
_PAX = (b"path=", b"linkpath=", b"size=", b"GNU.sparse.")
_MAX_DIGITS = 8
_VOLUME_LABEL = b"V"
"""The type of a tar entry that has only the name of the archive (`tar --label`)."""
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
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


class _BoundedTarInfo(tarfile.TarInfo):
    """A tar header that limits the size of extended headers and of maps of sparse files.

    tarfile takes a damaged header, or the end of the stream, for the end of the archive. An archive ends with
    blocks of zeros, so without them it is damaged or incomplete.
    """

    end_optional = False

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            at_end = isinstance(error, tarfile.EmptyHeaderError)  # type: ignore[attr-defined]
            if at_end and cls.end_optional:
                raise
            raise tarfile.ReadError("it ends early" if at_end else f"damaged: {error}") from None

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        stream = archive.fileobj
        archive.fileobj = _HeaderStream(stream)  # type: ignore[assignment, arg-type]
        try:
            return super()._proc_member(archive)  # type: ignore[misc, no-any-return]
        finally:
            archive.fileobj = stream

    def _proc_pax(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        """tarfile searches the records with regular expressions that take quadratic time on hostile input,
        and keeps global records for ever. So it gets only the records that matter here, and only of this
        entry."""
        headers = archive.fileobj
        padded = headers.read(self._block(self.size))  # type: ignore[attr-defined]
        kept = b"" if self.type == tarfile.XGLTYPE else b"".join(_pax_records(padded[: self.size]))
        self.size = len(kept)
        headers.unread(kept.ljust(self._block(self.size), b"\0"))  # type: ignore[attr-defined]
        return super()._proc_pax(archive)  # type: ignore[misc, no-any-return]


class _VerifiedTarInfo(_BoundedTarInfo):
    """A header of an archive whose digest is compared, so it is complete. Some programs write no end."""

    end_optional = True


class _HeaderStream:
    """The stream, limited to the size that the headers of one entry may have."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._left = _MAX_EXTENDED
        self._unread: bytes | None = None
        self.tell = stream.tell

    def unread(self, block: bytes) -> None:
        """Set the bytes that the next read returns."""
        self._unread = block

    def read(self, size: int) -> bytes:
        if self._unread is not None:
            block, self._unread = self._unread, None
            return block
        self._left -= size
        if self._left < 0:
            raise _hostile(f"an entry has over {human(_MAX_EXTENDED)} of headers.")
        return self._stream.read(size)


def _pax_records(block: bytes) -> Iterator[bytes]:
    """The records `<length> <keyword>=<value>\\n` with keywords in _PAX. Raises tarfile.TarError for a broken
    record."""
    at = 0
    while at < len(block) and block[at]:
        digits, space, _ = block[at : at + _MAX_DIGITS].partition(b" ")
        end = at + int(digits) if space and digits.isdigit() else 0
        start = at + len(digits) + 1
        if not start < end <= len(block) or block[end - 1] != ord("\n") or b"=" not in block[start:end]:
            raise tarfile.ReadError("an extended header is damaged")
        if block.startswith(_PAX, start, end):
            yield block[at:end]
        at = end


class _CountingReader:
    """The output of a decompressor. Each read calls `check` with the number of bytes so far."""

    def __init__(self, stream: IO[bytes], check: Callable[[int], None]) -> None:
        self._stream = stream
        self._check = check
        self._size = 0

    def read(self, size: int) -> bytes:
        block = self._stream.read(size)
        self._size += len(block)
        self._check(self._size)
        return block


def _hostile(message: str) -> StorageError:
    return StorageError(StatusReason.HOSTILE_ARCHIVE, message)


@dataclass
class Unpacker:
    """Writes entries below `into`. `consumed` returns the archive bytes read so far. `reserve` is called with
    the total of unpacked bytes before each write and may raise StorageError. The work ends early once
    `stopped` returns True."""

    into: Path
    files: tuple[str, ...]
    limits: Limits
    consumed: Callable[[], int]
    reserve: Callable[[int], None]
    stopped: Callable[[], bool] = lambda: False
    subtree: str = ""
    """The directory of an image that is unpacked; the archives are then its layers, with whiteouts."""
    _own: set[str] = field(default_factory=set)
    """Paths of this layer: its whiteouts apply only to lower layers."""
    _entries: int = 0
    _directories: int = 0
    _written: int = 0
    _symlinks: dict[str, str] = field(default_factory=dict)
    _link_text: int = 0
    _steps: int = 0

    def tar(self, stream: IO[bytes], kind: str, *, verified: bool = False) -> None:
        """Unpack "tar", "tar.gz" or "tar.zst" from a stream that cannot seek. Raises StorageError."""
        self.add(stream, kind, verified=verified)
        self.finish()

    def add(self, stream: IO[bytes], kind: str, *, verified: bool = False) -> None:
        """Unpack one of several tar archives, without its links: `finish` makes them after the last one.
        `verified`: the caller compares the digest of the archive."""
        header = _VerifiedTarInfo if verified else _BoundedTarInfo
        self._own.clear()
        try:
            reader = _CountingReader(_decompressed(stream, kind), self._check_expansion)
            with tarfile.open(
                fileobj=cast(IO[bytes], reader), mode="r|", bufsize=_TAR_BLOCK, tarinfo=header
            ) as archive:
                for entry in archive:
                    self._tar_entry(archive, entry)
                    archive.members = []  # type: ignore[attr-defined]  # or every entry stays in memory
            reader.read(_BLOCK)  # the padding, and the compressor's checksum after it
            while stream.read(_BLOCK):
                self._check_stopped()
        except (
            tarfile.TarError,
            zlib.error,
            zstandard.ZstdError,
            EOFError,
            gzip.BadGzipFile,
            RecursionError,
        ) as error:
            # The text about a file that is not gzip has the first bytes of the response.
            why = "it is not gzip" if isinstance(error, gzip.BadGzipFile) else error or "it ends early"
            raise StorageError(
                StatusReason.BAD_ARCHIVE, f"the {kind} archive cannot be read: {why}."
            ) from None

    def zip(self, path: Path) -> None:
        """Unpack a zip file. Raises StorageError."""
        try:
            with path.open("rb") as file:
                directory = zip_directory.find(file)
                self._check_entries(directory.count)
                for count, part in zip_directory.slices(file, directory):
                    self._check_entries(self._entries + count)
                    with zipfile.ZipFile(part) as archive:
                        for entry in archive.infolist():
                            self._zip_entry(archive, entry, part)
        except _BAD_ZIP as error:
            # bz2, and seeking to the directory, raise OSError for a damaged archive.
            if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
                raise
            raise StorageError(
                StatusReason.BAD_ARCHIVE, f"the zip archive cannot be read: {error or 'it ends early'}."
            ) from None
        self.finish()

    def _tar_entry(self, archive: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        name = self._selected_name(entry.name)
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
                raise StorageError(StatusReason.BAD_ARCHIVE, f"{name!r} has no content.")
            self._file(name, content, executable=bool(entry.mode & stat.S_IXUSR))
        elif entry.type != _VOLUME_LABEL:
            raise _hostile(f"{name!r} is a device or a pipe.")

    def _zip_entry(self, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, file: BinaryIO) -> None:
        name = self._selected_name(entry.filename)
        if not name:
            return
        mode = entry.external_attr >> 16
        if entry.compress_type == zipfile.ZIP_LZMA and _dictionary(file, entry) > _MAX_DICTIONARY:
            raise _hostile(f"{name!r} wants over {human(_MAX_DICTIONARY)} of memory to unpack.")
        if entry.is_dir():
            self._directory(name)
        elif stat.S_ISLNK(mode):
            with archive.open(entry) as content:
                self._symlink(name, content.read(_MAX_LINK + 1).decode(errors="replace"))
        elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
            with archive.open(entry) as content:
                self._file(name, content, executable=bool(mode & stat.S_IXUSR))
        else:
            raise _hostile(f"{name!r} is a device or a pipe.")

    def _selected_name(self, raw: str) -> str:
        """The entry's clean name; empty to skip the entry."""
        self._check_stopped()
        self._entries += 1
        self._check_entries(self._entries)
        if self.subtree:
            above, base = posixpath.split(self._full(raw))
            if base == _OPAQUE:
                self._hide(above, itself=False)
                return ""
            if base.startswith(_WHITEOUT):
                self._hide(posixpath.join(above, base.removeprefix(_WHITEOUT)), itself=True)
                return ""
        name = self._clean(raw)
        if name and self.subtree:
            self._own.add(name)
        return name if name and selected(name, self.files) else ""

    def _clean(self, raw: str) -> str:
        """`./a/b/` -> `a/b`; empty for the root, and for a path that is not below `subtree`. Raises
        StorageError for a path that leads outside."""
        if self.subtree:
            return self._below(self._full(raw))
        if raw.startswith("/") or ".." in raw.split("/"):
            raise _hostile(f"{raw[:200]!r} leads out of the model's directory.")
        name = posixpath.normpath(raw)
        return "" if name == "." else safe_path(name)

    def _check_entries(self, count: int) -> None:
        if count > self.limits.max_entries:
            raise StorageError(
                StatusReason.ARCHIVE_BOMB, f"the archive has more than {self.limits.max_entries} entries."
            )

    def _check_stopped(self) -> None:
        if self.stopped():
            raise StorageError(StatusReason.CANCELLED, "the model is no longer wanted.")

    def _directory(self, name: str) -> None:
        """Create a directory and its parents. None can be a link: links are created last."""
        missing = [self.into / name]
        try:
            while missing:
                try:
                    missing[-1].mkdir()
                except FileNotFoundError:
                    missing.append(missing[-1].parent)
                    continue
                except FileExistsError:
                    if not missing[-1].is_dir():
                        raise
                else:
                    self._directories += 1
                    self._check_entries(self._directories)
                missing.pop()
        except (FileExistsError, NotADirectoryError):
            raise StorageError(StatusReason.BAD_ARCHIVE, f"{name!r} is a file, or is below a file.") from None

    def _parent(self, name: str) -> None:
        above = posixpath.dirname(name)
        if above:
            self._directory(above)

    def _file(self, name: str, content: IO[bytes], *, executable: bool) -> None:
        self._parent(name)
        path = self.into / name
        if path.is_dir():
            raise StorageError(StatusReason.BAD_ARCHIVE, f"{name!r} is both a file and a directory.")
        path.unlink(missing_ok=True)  # a later entry of the same name wins, as with tar itself
        self._symlinks.pop(name, None)
        with path.open("xb") as file:
            while block := content.read(_BLOCK):
                self._written += len(block)
                self._check_expansion(self._written)
                self.reserve(self._written)
                file.write(block)
        path.chmod(0o755 if executable else 0o644)

    def _check_expansion(self, size: int) -> None:
        """`size`: unpacked bytes so far, written or skipped."""
        self._check_stopped()
        if size > self.limits.free_expansion:
            archived = max(self.consumed(), 1)
            if size > archived * self.limits.max_expansion:
                raise StorageError(
                    StatusReason.ARCHIVE_BOMB,
                    f"{human(archived)} of archive expand to over {human(size)}: more than"
                    f" {self.limits.max_expansion} bytes for each byte.",
                )

    def _symlink(self, name: str, target: str) -> None:
        if self.subtree and target.startswith(f"/{self.subtree}/"):  # an image's links may name its own root
            inside = target.removeprefix(f"/{self.subtree}/")
            target = posixpath.relpath(inside, posixpath.dirname(name) or ".")
        if target.startswith("/") or not target.isprintable() or not target:
            raise _hostile(f"the link {name!r} leads out of the model's directory.")
        self._link_text += len(name) + len(target)
        if len(target) > _MAX_LINK or self._link_text > _MAX_LINKS:
            raise StorageError(
                StatusReason.ARCHIVE_BOMB,
                f"all links have over {human(_MAX_LINKS)}, or one has over {_MAX_LINK} B.",
            )
        self._symlinks[name] = target

    def _hardlink(self, name: str, target: str) -> None:
        if not target or not (self.into / target).is_file():
            raise _hostile(f"the link {name!r} leads to no earlier file.")
        if name != target:
            self._parent(name)
            (self.into / name).unlink(missing_ok=True)
            os.link(self.into / target, self.into / name)

    def finish(self) -> None:
        """Follow each link through the table of all links, then create them. The tree has no other links, so
        the kernel will follow them in the same way."""
        for name, target in self._symlinks.items():
            self._check_stopped()
            self._follow(name, target)
        for name, target in self._symlinks.items():
            self._check_stopped()
            path = self.into / name
            if any(str(parent) in self._symlinks for parent in PurePosixPath(name).parents) or path.is_dir():
                raise _hostile(f"the link {name!r} has the path of another entry.")
            self._parent(name)
            path.unlink(missing_ok=True)
            path.symlink_to(target)

    def _follow(self, name: str, target: str) -> None:
        """Raises StorageError for a link that leaves the tree, even if it returns, or that is circular."""
        place = name.split("/")[:-1]
        remaining = target.split("/")[::-1]
        followed = 1
        while remaining:
            self._steps += 1
            if self._steps > _STEPS_PER_ENTRY * self.limits.max_entries:
                raise StorageError(StatusReason.ARCHIVE_BOMB, "its links lead through too many other links.")
            part = remaining.pop()
            if part == ".." and not place:
                raise _hostile(f"the link {name!r} leads out of the model's directory.")
            if part == "..":
                place.pop()
            elif part not in ("", "."):
                place.append(part)
                further = self._symlinks.get("/".join(place))
                if further is not None:
                    followed += 1
                    place.pop()
                    remaining += further.split("/")[::-1]
            if followed > _MAX_FOLLOWED or len(place) > MAX_DEPTH:
                raise _hostile(f"the link {name!r} leads in a circle.")

    # --- the layers of an image ----------------------------------------------------------------------

    @staticmethod
    def _full(raw: str) -> str:
        if ".." in raw.split("/"):
            raise StorageError(StatusReason.HOSTILE_ARCHIVE, f"{raw[:200]!r} leads out of the image.")
        return posixpath.normpath(raw.lstrip("/") or ".")

    def _below(self, full: str) -> str:
        """The path below `subtree`; empty for other paths."""
        prefix = f"{self.subtree}/"
        return safe_path(full.removeprefix(prefix)) if full.startswith(prefix) else ""

    def _hide(self, full: str, *, itself: bool) -> None:
        """Remove the files of lower layers below a path, with `itself` also at the path."""
        whole = f"{self.subtree}/".startswith(f"{full}/") or full in ("", ".")
        name = "" if whole else self._below(full)
        if not whole and not name:
            return
        for link in [link for link in self._symlinks if self._hidden(link, name, itself)]:
            del self._symlinks[link]
        top = self.into / name
        if itself and name and not top.is_dir():
            if name not in self._own:
                top.unlink(missing_ok=True)
            return
        for parent, directories, files in os.walk(top, topdown=False):
            self._check_stopped()
            below = os.path.relpath(parent, self.into)
            for file in files:
                if posixpath.normpath(posixpath.join(below, file)) not in self._own:
                    os.unlink(os.path.join(parent, file))  # noqa: PTH108, PTH118
            for directory in directories:
                path = posixpath.normpath(posixpath.join(below, directory))
                if path not in self._own and not os.listdir(os.path.join(parent, directory)):  # noqa: PTH118, PTH208
                    os.rmdir(os.path.join(parent, directory))  # noqa: PTH106, PTH118
        if itself and name and name not in self._own and top.is_dir() and not any(top.iterdir()):
            remove_tree(top)

    def _hidden(self, link: str, name: str, itself: bool) -> bool:
        if link in self._own:
            return False
        return link.startswith(f"{name}/") or not name or (itself and link == name)


def _dictionary(file: BinaryIO, entry: zipfile.ZipInfo) -> int:
    """Bytes of memory that an LZMA entry requires."""
    file.seek(entry.header_offset)
    name, extra = struct.unpack("<26x2H", file.read(30).ljust(30, b"\0"))
    file.seek(entry.header_offset + 30 + name + extra)
    (size,) = struct.unpack("<5xL", file.read(9).ljust(9, b"\0"))
    return int(size)


def _decompressed(stream: IO[bytes], kind: str) -> IO[bytes]:
    if kind == "tar.gz":
        return gzip.GzipFile(fileobj=stream, mode="rb")  # type: ignore[return-value]
    if kind == "tar.zst":
        return zstandard.ZstdDecompressor(max_window_size=_MAX_DICTIONARY).stream_reader(
            stream, read_across_frames=True
        )
    return stream
