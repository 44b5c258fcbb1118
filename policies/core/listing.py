"""The objects of one resource at one moment, and values derived from them.

Law: a Listing never changes. If an object of the cluster changes, the next Listing inherits the indices of
the previous one and updates them, so one changed Node costs the same among ten thousand as among ten.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, ValuesView
from typing import Any, Final, Generic, TypeAlias, TypeVar, overload

from policies.kube.cache import Cache
from policies.kube.json import Json, text
from policies.kube.objects.metadata import Object
from policies.kube.objects.reading import read

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
ObjectT = TypeVar("ObjectT", bound=Object)

Change: TypeAlias = tuple[Json | None, Json | None]
"""The old object and the new one; None if it was created or deleted."""

_MAX_CHANGES: Final = 64
"""After more changes without a use, an index is built from all objects again."""


class Groups(Generic[K]):
    """Objects by the keys of an index; an object may be in several groups or in none."""

    __slots__ = ("_derived", "_groups")

    def __init__(self) -> None:
        self._groups: dict[K, dict[Hashable, Json]] = {}
        self._derived: Any = None

    def __iter__(self) -> Iterator[K]:
        """The keys that have objects."""
        return iter(self._groups)

    def __getitem__(self, key: K) -> ValuesView[Json]:
        """The objects with a key."""
        return self._groups.get(key, _EMPTY).values()

    def one(self, key: K) -> Json | None:
        """The object with a key; of several the one with the last name, so that their order has no effect."""
        found = self._groups.get(key)
        if not found:
            return None
        return max(reversed(found.values()), key=_named) if len(found) > 1 else next(iter(found.values()))

    def derived(self, compute: Callable[[], T]) -> T:
        """`compute()`, called once until a group changes. An index has one such function."""
        found: T | None = self._derived
        if found is None:
            found = self._derived = compute()
        return found

    def add(self, keys: Iterable[K], obj: Json) -> None:
        name = _name(obj)
        for key in keys:
            self._derived = None
            group = self._groups.setdefault(key, {})
            if group.get(name, obj) is obj:
                group[name] = obj
            else:  # files may contain an object twice
                group[name, id(obj)] = obj

    def remove(self, keys: Iterable[K], obj: Json) -> None:
        name = _name(obj)
        for key in keys:
            self._derived = None
            group = self._groups.get(key, {})
            group.pop(name, None)
            if not group:
                self._groups.pop(key, None)


def is_manifest(obj: Json) -> bool:
    """Whether an object of a listing comes from a file, so that the cluster may have others. Items that the
    API server lists have no apiVersion."""
    return "apiVersion" in obj


_EMPTY: Final[dict[Hashable, Json]] = {}


def _named(obj: Json) -> str:
    return text(obj, "metadata", "name")


def _name(obj: Json) -> Hashable:
    return obj.get("kind"), text(obj, "metadata", "namespace"), text(obj, "metadata", "name")


class Index(Generic[K]):
    """Groups the objects of a listing by keys that are computed from each object."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Callable[[Json], Iterable[K]]) -> None:
        self._keys = keys

    def build(self, listing: Iterable[Json]) -> Groups[K]:
        """The groups of all objects."""
        groups: Groups[K] = Groups()
        for obj in listing:
            groups.add(self._keys(obj), obj)
        return groups

    def update(self, groups: Groups[K], changes: Iterable[Change]) -> Groups[K]:
        """The groups after some changes."""
        for old, new in changes:
            if old is not None:
                groups.remove(self._keys(old), old)
            if new is not None:
                groups.add(self._keys(new), new)
        return groups


class TypedIndex(Index[K], Generic[ObjectT, K]):
    """Groups the objects of a listing by keys that are computed from each object as a type."""

    __slots__ = ()

    def __init__(self, as_type: type[ObjectT], keys: Callable[[ObjectT], Iterable[K]]) -> None:
        super().__init__(lambda obj: keys(read(obj, as_type)))


class Listing(Sequence[Json]):
    """The objects of one resource at one moment. Immutable, so a derived value is computed once for all
    requests until an object changes."""

    __slots__ = ("__weakref__", "_cache", "_indices", "_inherited", "_items")

    def __init__(self, items: Iterable[Json] = (), inherited: InheritedIndices | None = None) -> None:
        self._items = tuple(items)
        self._cache = Cache()
        self._indices: dict[Index[Any], Groups[Any]] = {}
        self._inherited = inherited

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

    def objects(self, as_type: type[ObjectT]) -> Objects[ObjectT]:
        """The objects as a type, of which each is converted once."""
        return self._cache.once_for(as_type, Objects, self, as_type)

    def by(self, index: Index[K]) -> Groups[K]:
        """The groups of an index, inherited from the previous listing if that had them."""
        groups = self._indices.get(index)
        if groups is None:
            groups = self._inherited.groups(index) if self._inherited is not None else None
            groups = self._indices[index] = index.build(self) if groups is None else groups
        return groups


class Objects(Generic[ObjectT]):
    """The objects of a listing as a type. Each is converted when it is asked for."""

    __slots__ = ("_known", "_type", "listing")

    def __init__(self, listing: Listing, as_type: type[ObjectT]) -> None:
        self.listing, self._type = listing, as_type
        self._known: dict[int, ObjectT] = {}

    def __len__(self) -> int:
        return len(self.listing)

    def __iter__(self) -> Iterator[ObjectT]:
        return map(self.typed, self.listing)

    def by(self, index: TypedIndex[ObjectT, K], key: K) -> Iterator[ObjectT]:
        """The objects with a key."""
        return map(self.typed, self.listing.by(index)[key])

    def one(self, index: TypedIndex[ObjectT, K], key: K) -> ObjectT | None:
        """The object with a key; see `Groups.one`."""
        found = self.listing.by(index).one(key)
        return None if found is None else self.typed(found)

    def named(self, name: str) -> ObjectT | None:
        found = self.listing.by(BY_NAME).one(name)
        return None if found is None else self.typed(found)

    def all_named(self, name: str) -> Iterator[ObjectT]:
        """The objects of a name: of several kinds, or several in files."""
        return map(self.typed, self.listing.by(BY_NAME)[name])

    def typed(self, obj: Json) -> ObjectT:
        """An object of the listing as the type."""
        known = self._known.get(id(obj))  # the listing keeps the object, so no other one gets its id
        if known is None:
            known = self._known[id(obj)] = read(obj, self._type)
        return known


def _name_of(obj: Json) -> Iterator[str]:
    yield _named(obj)


BY_NAME: Final = Index(_name_of)
"""The objects of a namespace by their names."""
NO_OBJECTS: Final = Listing()


class InheritedIndices:
    """The indices of a listing, for the next one."""

    __slots__ = ("_indices",)

    def __init__(self, listing: Listing) -> None:
        """Moves the indices out of a listing; if they are used there again, they are built again."""
        self._indices: dict[Index[Any], tuple[Groups[Any], list[Change]]] = {}
        if listing._inherited is not None:
            self._indices |= listing._inherited._indices
        self._indices |= {index: (groups, []) for index, groups in listing._indices.items()}
        listing._indices, listing._inherited = {}, None

    def add(self, old: Json | None, new: Json | None) -> bool:
        """Record a change; False if no index is left."""
        for index, (_, changes) in list(self._indices.items()):
            changes.append((old, new))
            if len(changes) > _MAX_CHANGES:
                del self._indices[index]
        return bool(self._indices)

    def groups(self, index: Index[K]) -> Groups[K] | None:
        """The groups of an index after the changes; None if the listing had none."""
        found = self._indices.pop(index, None)
        return None if found is None else index.update(*found)
