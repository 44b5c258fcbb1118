"""Values that are computed once for one owner: a container, a pod template, the facts about a pod.

Law: a value depends only on its owner, on its key, and on what stays the same as long as the owner exists.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar, TypeVarTuple, overload

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
