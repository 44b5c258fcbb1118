"""Values that are computed once for one owner: a container, a pod template, the facts about a pod.

Law: a value depends only on its owner, on its key, and on what stays the same as long as the owner exists.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar, TypeVarTuple

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
