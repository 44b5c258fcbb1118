"""Values that are computed once: for one owner (a container, a pod template, the facts about a pod), or for
all reviews, in a cache of limited size.

Law: a value depends only on its owner, on its key, and on what stays the same as long as the owner exists.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar, TypeVarTuple, overload

A = TypeVarTuple("A")
V = TypeVar("V")


class Cache(dict[Any, Any]):
    """The values of one owner. Each is found by the function that computes it, which is no lambda."""

    __slots__ = ()

    def once(self, compute: Callable[[*A], V], *args: *A) -> V:
        """`compute(*args)`, called once."""
        try:
            value: V = self[compute]
        except KeyError:
            value = self[compute] = compute(*args)
        return value

    def once_for(self, key: Hashable, compute: Callable[[*A], V], *args: *A) -> V:
        """`compute(*args)`, called once for each key."""
        place = (compute, key)
        try:
            value: V = self[place]
        except KeyError:
            value = self[place] = compute(*args)
        return value


T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801  # used like `property`
    """A property that is computed at its first use, and is an attribute then.

    `functools.cached_property` of Python 3.11 does the same with a lock, and takes four times as long.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute, self._name, self.__doc__ = compute, compute.__name__, compute.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> lazy[T]: ...

    @overload
    def __get__(self, owner: object, kind: type) -> T: ...

    def __get__(self, owner: object | None, kind: type) -> T | lazy[T]:
        if owner is None:
            return self
        value = owner.__dict__[self._name] = self._compute(owner)
        return value


K = TypeVar("K", bound=Hashable)

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
