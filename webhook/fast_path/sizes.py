"""How many bytes of memory something holds: measured, since estimates were too small by several times."""

from __future__ import annotations

import gc
import re
from enum import Enum
from functools import lru_cache
from sys import getsizeof
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final
from weakref import ref

from pydantic import BaseModel

from policies.containers.remembered import Remembered
from policies.core.listing import Listing
from policies.probes.recognition import Recogniser, Server

_SHARED: Final = (
    *(type, ModuleType, BuiltinFunctionType, Enum, re.Pattern, ref),
    *(BaseModel, Listing, Recogniser, Remembered, Server),
)
"""What others hold, too."""
SLOT: Final = 256
"""Bytes that the tables themselves take for an entry."""
LARGEST: Final = 16
"""One entry may have this part of the memo."""
_ROUNDED: Final = 15
"""An allocation takes a multiple of 16 bytes."""


def held(*roots: object, shared: tuple[type, ...] = ()) -> int:
    """Bytes of all objects that these reach, each counted once, those of `shared` types without what they
    reach. It takes as long as there are objects."""
    size, seen, found = 0, set[int](), list[Any](roots)
    while found:
        each = found.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        kind: Any = type(each)
        if _is(kind, _SHARED):
            continue
        if shared and _is(kind, shared):
            size += getsizeof(each)
            continue
        size += getsizeof(each) + _ROUNDED & ~_ROUNDED
        if kind is FunctionType:  # not its globals
            found += each.__closure__ or ()
        elif kind is not str and kind is not bytes:
            found += gc.get_referents(each)
    return size


@lru_cache(maxsize=1024)
def _is(kind: Any, kinds: tuple[type, ...]) -> bool:
    """Remembered, since the question costs more than all else here: some of the types are abstract."""
    return issubclass(kind, kinds)


def trimmed(written: bytes) -> bytes:
    """A copy of exact size: orjson's may hold several times as much memory."""
    return bytes(memoryview(written))
