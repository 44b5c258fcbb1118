"""A cache of limited size, so that requests cannot fill the memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

LARGEST: Final = 2 << 20
"""Approximate maximum size in bytes: enough for a pod at both endpoints and its workload. Limited by bytes
and not by entries, so that one review with many small containers never removes its own entries."""
_ENTRY: Final = 500
"""Bytes of an entry without its content."""


class BoundedCache(Generic[K, V]):
    """Values by key. The least recently used value is dropped first."""

    def __init__(self, largest: int = LARGEST) -> None:
        self._largest, self._size = largest, 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Add a value; `size` is that of the value and its key in bytes. Too large values are not kept."""
        size += _ENTRY
        if key in self._values or size > self._largest:
            return
        self._values[key] = (value, size)
        self._size += size
        while self._size > self._largest:
            _, (_, dropped) = self._values.popitem(last=False)
            self._size -= dropped

    def clear(self) -> None:
        self._values.clear()
        self._size = 0

    def __len__(self) -> int:
        return len(self._values)
