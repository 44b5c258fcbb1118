"""The objects of one resource at one moment, and values derived from them.

Law: a Listing never changes. Where one object of a cluster changes, the next Listing takes over the indices
of the one before: deleted objects are taken out of them and new ones are put in, so that one changed Node
costs the same among ten thousand as among ten.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, ValuesView
from typing import Any, Final, Generic, TypeAlias, TypeVar, overload

from policies.kube.cache import Cache
from policies.kube.json import Json, text

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

Change: TypeAlias = tuple[Json | None, Json | None]
"""An object that is gone, and the one that came in its place; None where there is none."""

_MOST_CHANGES: Final = 64
"""Changes that are carried over; an index that is not asked for meanwhile is built again after more."""


class Groups(Generic[K]):
    """Objects by the keys of an index; an object may be in several groups, or in none."""

    __slots__ = ("_derived", "_groups")

    def __init__(self) -> None:
        self._groups: dict[K, dict[Hashable, Json]] = {}
        self._derived: Any = None

    def __iter__(self) -> Iterator[K]:
        """The keys that have a group."""
        return iter(self._groups)

    def __getitem__(self, key: K) -> ValuesView[Json]:
        """The objects of a group; empty where there is none."""
        return self._groups.get(key, _NOBODY).values()

    def one(self, key: K) -> Json | None:
        """The object of a group; of several the one with the last name, independent of their order."""
        found = self._groups.get(key)
        if not found:
            return None
        return max(reversed(found.values()), key=_named) if len(found) > 1 else next(iter(found.values()))

    def derived(self, compute: Callable[[], T]) -> T:
        """The result of `compute`, once until a group changes. An index has one such function."""
        found: T | None = self._derived
        if found is None:
            found = self._derived = compute()
        return found

    def put(self, keys: Iterable[K], obj: Json) -> None:
        name = _name(obj)
        for key in keys:
            self._derived = None
            group = self._groups.setdefault(key, {})
            if group.get(name, obj) is obj:
                group[name] = obj
            else:  # in files an object may appear twice
                group[name, id(obj)] = obj

    def take(self, keys: Iterable[K], obj: Json) -> None:
        name = _name(obj)
        for key in keys:
            self._derived = None
            group = self._groups.get(key, {})
            group.pop(name, None)
            if not group:
                self._groups.pop(key, None)


def is_manifest(obj: Json) -> bool:
    """Whether an object of a listing comes from a file. Then the cluster may have others; items that the API
    server lists have no apiVersion."""
    return "apiVersion" in obj


_NOBODY: Final[dict[Hashable, Json]] = {}


def _named(obj: Json) -> str:
    return text(obj, "metadata", "name")


def _name(obj: Json) -> Hashable:
    return obj.get("kind"), text(obj, "metadata", "namespace"), text(obj, "metadata", "name")


class Index(Generic[K]):
    """Groups the objects of a listing by keys that are computed from each object."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Callable[[Json], Iterable[K]]) -> None:
        self._keys = keys

    def made(self, listing: Iterable[Json]) -> Groups[K]:
        """The groups of all objects."""
        groups: Groups[K] = Groups()
        for obj in listing:
            groups.put(self._keys(obj), obj)
        return groups

    def changed(self, groups: Groups[K], changes: Iterable[Change]) -> Groups[K]:
        """The groups after some objects went and others came."""
        for gone, come in changes:
            if gone is not None:
                groups.take(self._keys(gone), gone)
            if come is not None:
                groups.put(self._keys(come), come)
        return groups


class Listing(Sequence[Json]):
    """The objects of one resource at one moment, with values derived from them.

    Immutable; a changed object makes a new Listing, so a derived value is computed at most once per change,
    however many requests ask for it.
    """

    __slots__ = ("__weakref__", "_cache", "_carried", "_indices", "_items")

    def __init__(self, items: Iterable[Json] = (), carried: Carried | None = None) -> None:
        """`carried`: from the listing that this one follows."""
        self._items = tuple(items)
        self._cache = Cache()
        self._indices: dict[Index[Any], Groups[Any]] = {}
        self._carried = carried

    @overload
    def __getitem__(self, index: int) -> Json: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Json, ...]: ...
    def __getitem__(self, index: int | slice) -> Json | tuple[Json, ...]:
        return self._items[index]

    def __iter__(self) -> Iterator[Json]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def derive(self, function: Callable[[Listing], T]) -> T:
        """`function(self)`, computed once. The function is the key, so pass no lambda."""
        return self._cache.once(function, self)

    def by(self, index: Index[K]) -> Groups[K]:
        """The groups of an index, taken over from the listing before where that had them."""
        groups = self._indices.get(index)
        if groups is None:
            groups = self._carried.groups(index) if self._carried is not None else None
            groups = self._indices[index] = index.made(self) if groups is None else groups
        return groups


class Carried:
    """The indices of a listing that is no longer current, on their way to the one that follows."""

    __slots__ = ("_indices",)

    def __init__(self, listing: Listing) -> None:
        """Takes the indices away from a listing: a later question to it builds them again."""
        self._indices: dict[Index[Any], tuple[Groups[Any], list[Change]]] = {}
        if listing._carried is not None:
            self._indices |= listing._carried._indices
        self._indices |= {index: (groups, []) for index, groups in listing._indices.items()}
        listing._indices, listing._carried = {}, None

    def add(self, gone: Json | None, come: Json | None) -> bool:
        """Note a change; False where there is nothing left to carry."""
        for index, (_, changes) in list(self._indices.items()):
            changes.append((gone, come))
            if len(changes) > _MOST_CHANGES:
                del self._indices[index]
        return bool(self._indices)

    def groups(self, index: Index[K]) -> Groups[K] | None:
        """The groups of an index with all changes made; None if they were not made before."""
        found = self._indices.pop(index, None)
        return None if found is None else index.changed(*found)
