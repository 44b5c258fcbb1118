"""The central directory of a zip archive, a slice at a time.

zipfile reads the whole directory and creates an object for each entry before it returns the first: 75 MB of
archive can have 1.5 million entries, which take a gigabyte. This module reads the directory once, counts its
entries, and gives each slice to zipfile as if it were the whole. The archive's own numbers (entries, length
of the directory) are not trusted: they can only lead to an earlier refusal.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO
from zipfile import BadZipFile

_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s24x3H12x")
"""Of an entry's 46 bytes: the signature, and the lengths of its name, extra field and comment."""
_MAX_COMMENT = 0xFFFF
_SLICE = 1000
"""Entries that are buffer in memory at a time."""


@dataclass(frozen=True, slots=True)
class CentralDirectory:
    """The place of the central directory. `count`: the declared number of entries. `start`, `size`: its place
    in the file, in bytes. `offset`: its declared place, which is less if other bytes precede the archive."""

    count: int
    start: int
    size: int
    offset: int


def find(file: BinaryIO) -> CentralDirectory:
    """The central directory, from the record at the archive's end. Raises BadZipFile."""
    length = file.seek(0, io.SEEK_END)
    file.seek(max(length - _END.size - _MAX_COMMENT, 0))
    base = file.tell()
    tail = file.read(_END.size + _MAX_COMMENT)
    at = len(tail) - _END.size
    if at < 0 or tail[at : at + 4] != b"PK\5\6" or tail[-2:] != b"\0\0":
        at = tail.rfind(b"PK\5\6")
    if at < 0 or at + _END.size > len(tail):
        raise BadZipFile("it has no end record")
    _, _, _, _, count, size, offset, _ = _END.unpack_from(tail, at)
    end = base + at
    found = _zip64(file, end)
    if found is not None:
        end, count, size, offset = found
    if size > end:
        raise BadZipFile("its directory is longer than the file")
    return CentralDirectory(count, end - size, size, offset)


def _zip64(file: BinaryIO, end: int) -> tuple[int, int, int, int] | None:
    """(position, entries, directory's size and offset) of the end record for large archives."""
    if end < _LOCATOR.size:
        return None
    file.seek(end - _LOCATOR.size)
    signature, _, declared, _ = _LOCATOR.unpack(file.read(_LOCATOR.size))
    if signature != b"PK\6\7":
        return None
    for place in (end - _LOCATOR.size - _END64.size, declared):
        if 0 <= place <= end - _LOCATOR.size - _END64.size:
            file.seek(place)
            fields = _END64.unpack(file.read(_END64.size))
            if fields[0] == b"PK\6\6":
                return place, fields[7], fields[8], fields[9]
    raise BadZipFile("it has no end record of 64 bits")


def slices(file: BinaryIO, directory: CentralDirectory) -> Iterator[tuple[int, BinaryIO]]:
    """(number of entries, a file whose directory has only these) for each slice. Raises BadZipFile."""
    file.seek(directory.start)
    left, buffer, entries = directory.size, bytearray(), 0
    while left:
        head = file.read(_ENTRY.size)
        if len(head) < _ENTRY.size or not head.startswith(b"PK\1\2"):
            raise BadZipFile("its directory is damaged")
        more = sum(_ENTRY.unpack(head)[1:])
        left -= _ENTRY.size + more
        if left < 0:
            raise BadZipFile("its directory is damaged")
        buffer += head + file.read(more)
        entries += 1
        if entries == _SLICE or not left:
            place = file.tell()
            yield entries, _Slice(file, directory, bytes(buffer), entries)
            file.seek(place)
            buffer, entries = bytearray(), 0


class _Slice(io.RawIOBase, BinaryIO):
    """The archive with one slice of its directory, and a matching end record."""

    def __init__(self, file: BinaryIO, directory: CentralDirectory, entries: bytes, count: int) -> None:
        self._file = file
        self._start = directory.start
        size = len(entries)
        self._tail = (
            entries
            + _END64.pack(b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, directory.offset)
            + _LOCATOR.pack(b"PK\6\7", 0, directory.start + size, 1)
            + _END.pack(b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
        )
        self._at = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        origin = (0, self._at, self._start + len(self._tail))[whence]
        if origin + offset < 0:
            raise OSError("before the beginning")
        self._at = origin + offset
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        if self._at >= self._start:
            at = self._at - self._start
            data = self._tail[at:] if size < 0 else self._tail[at : at + size]
        else:
            room = self._start - self._at
            self._file.seek(self._at)
            data = self._file.read(room if size < 0 else min(size, room))
        self._at += len(data)
        return data
