"""Makes a library that was built with GCC 13 load next to the libstdc++ of GCC 12."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from pathlib import Path
from typing import Final

VERSION: Final = b"GLIBCXX_3.4.32"
INITIALISER: Final = "_ZSt21ios_base_library_initv"
"""The symbol of that version which such a library needs. Older versions do its work in each object file."""
_WEAK: Final = 2
_UNUSED: Final = b"\0\0"


def is_missing() -> bool:
    """Whether the machine's libstdc++ is older than that."""
    return not hasattr(ctypes.CDLL("libstdc++.so.6"), INITIALISER)


def weaken(library: Path) -> None:
    """Mark what a library needs of that version as weak (`vna_flags` of an Elf64_Vernaux)."""
    data = bytearray(library.read_bytes())
    wanted, at = struct.pack("<I", _hash(VERSION)) + _UNUSED, -1
    while (at := data.find(wanted, at + 1)) >= 0:
        data[at + 4] = _WEAK
    library.unlink()  # uv's environments share files
    library.write_bytes(data)


def stand_in(library: Path) -> None:
    """Build a library with the symbol, for LD_PRELOAD."""
    source = f"void {INITIALISER}(void) {{}}"
    subprocess.run(["cc", "-shared", "-fPIC", "-xc", "-", "-o", library], input=source, text=True, check=True)


def _hash(name: bytes) -> int:
    """A name's hash in ELF (System V ABI, "Hash Table")."""
    value = 0
    for byte in name:
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    return value
