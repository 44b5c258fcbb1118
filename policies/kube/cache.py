"""Values that are computed once for one owner: a container, a pod template, the facts about a pod.

Law: a value depends only on its owner, on its key, and on what stays the same as long as the owner exists.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
V = TypeVar("V")


class Cache(dict[Any, Any]):
    """The values of one owner. Each is found by the function that computes it, which is no lambda."""

    __slots__ = ()

    def once(self, compute: Callable[P, V], *args: P.args, **kwargs: P.kwargs) -> V:
        """`compute(*args, **kwargs)`, called once."""
        try:
            value: V = self[compute]
        except KeyError:
            value = self[compute] = compute(*args, **kwargs)
        return value

    def once_for(self, key: Hashable, compute: Callable[P, V], *args: P.args, **kwargs: P.kwargs) -> V:
        """`compute(*args, **kwargs)`, called once for each key."""
        place = (compute, key)
        try:
            value: V = self[place]
        except KeyError:
            value = self[place] = compute(*args, **kwargs)
        return value
