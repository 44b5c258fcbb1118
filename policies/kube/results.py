"""Results that are worked out once about one thing: a container, a pod template, a pod, a review's facts.

Law: a result follows from the thing that keeps it. Each key has one owner, the only function that uses it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Result(Generic[V]):
    """The key of one function's results, and their type."""

    __slots__ = ()


class Results(dict[Result[Any], Any]):
    """The results about one thing, each of its key's type. Equal only to itself, so that it can be a key."""

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__

    if TYPE_CHECKING:  # the methods of a dictionary, which are the fastest there are

        def get(self, key: Result[V]) -> V | None: ...  # type: ignore[override]

        def __setitem__(self, key: Result[V], value: V) -> None: ...

    def table(self, key: Result[dict[K, V]]) -> dict[K, V]:
        """Results that depend on something else, too, by that."""
        found = self.get(key)
        if found is None:
            found = self[key] = {}
        return found
