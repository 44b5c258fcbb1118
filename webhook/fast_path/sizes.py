"""The memory that objects use: measured, because estimates were too small by a factor."""

from __future__ import annotations

import gc
import re
from enum import Enum
from sys import getsizeof
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final
from weakref import ref

_SHARED: Final = (type, ModuleType, BuiltinFunctionType, Enum, re.Pattern, ref)
"""Types of objects that are also used elsewhere."""
SLOT: Final = 256
"""Bytes that an entry uses in the tables themselves."""
LARGEST: Final = 16
"""An entry may use one sixteenth of the memo."""
_ROUNDED: Final = 15
"""Allocations are multiples of 16 bytes."""


def held(*roots: object, shared: tuple[type, ...] = ()) -> int:
    """Bytes of all objects reachable from `roots`, each counted once. Objects of `shared` types count without
    the objects that they refer to. The time is linear in the number of objects."""
    size, seen, found = 0, set[int](), list[Any](roots)
    while found:
        each = found.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        kind: Any = type(each)
        if issubclass(kind, _SHARED):
            continue
        if issubclass(kind, shared):
            size += getsizeof(each)
            continue
        size += getsizeof(each) + _ROUNDED & ~_ROUNDED
        if kind is FunctionType:  # not its globals
            found += each.__closure__ or ()
        elif kind is not str and kind is not bytes:
            found += gc.get_referents(each)
    return size


def trimmed(written: bytes) -> bytes:
    """A copy of exact size: orjson may reserve several times as much memory."""
    return bytes(memoryview(written))
