"""Recognises replicas by the bytes of their reviews, without parsing JSON.

Law: two bodies of one form that are equal outside of its holes have the same canonical request. A form lists
the holes in bodies of one length: the places of values that differ between replicas. Each hole is a JSON
string or the end of one, and a body has the form if its holes contain only plain characters, which end no
string.
A form needs a proof by counting: in a body that was parsed, the value of each hole occurs as often in the
bytes as in places where the canonical form has a constant. So no other place contains it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from policies.kube.json import Json
from webhook.admission.canonical import CONSTANT, CONSTANTS, RANDOM, Canonical, places, with_constant
from webhook.admission.envelope import Request

T = TypeVar("T")

_NONE: Final[dict[Any, Any]] = {}
_LOWER: Final = b"abcdefghijklmnopqrstuvwxyz0123456789"
_PLAIN: Final = _LOWER + _LOWER.upper() + b":.-"
"""Characters that end no JSON string and are not escaped in it."""
_VALUE: Final = re.compile(rf"[{_PLAIN.decode()}]{{1,64}}")
_FIELDS: Final = tuple(key for key, value in CONSTANTS.items() if type(value) is str)
_ESCAPES: Final = (b"\\u003c", b"\\u003e", b"\\u0026")
"""Escapes that API servers write; none stands for a plain character."""
LARGEST: Final = 256 * 1024
"""Bytes of a body that can have a form."""
MAX_VALUES: Final = 24
"""Values that are searched in a body."""
MAX_HOLES: Final = 64
MAX_FORMS: Final = 8
"""Forms of bodies of one length: a body is compared with all of them."""


class Own(NamedTuple):
    """The values of one replica that its answer or log line contains."""

    uid: bytes
    """The request's."""
    name_end: bytes


class _Hole(NamedTuple):
    start: int
    end: int
    kind: str
    """`uid` (the request's), `name`, `token`, or empty."""


class Form:
    """The holes in bodies of one length."""

    __slots__ = ("_names", "_own", "_tokens", "holes", "rest")

    def __init__(self, holes: Iterable[_Hole]) -> None:
        self.holes = tuple(sorted(holes))
        edges = [0, *(edge for hole in self.holes for edge in hole[:2]), None]
        self.rest = _cut(slice(*edge) for edge in zip(edges[::2], edges[1::2], strict=True))
        """The bytes around the holes: equal in all replicas."""
        kinds = ("uid", "name", "token", "")
        order = sorted(self.holes, key=lambda hole: kinds.index(hole.kind))
        self._own = _cut(slice(hole.start, hole.end) for hole in order)
        names, tokens = (sum(hole.kind == kind for hole in order) for kind in ("name", "token"))
        self._names, self._tokens = slice(1, 1 + names), slice(1 + names, 1 + names + tokens)

    @classmethod
    def of(cls, body: bytes, request: Request, canonical: Canonical) -> Form | None:
        """The form of a parsed body; None if there is no proof."""
        if len(body) > LARGEST or not _may_vary(request, canonical):
            return None
        holes = _holes(body, request, canonical)
        return None if holes is None else cls(holes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Form) and self.holes == other.holes

    def __hash__(self) -> int:
        return hash(self.holes)

    def key(self, endpoint: str, body: bytes) -> Key:
        """The bytes that are equal in all replicas."""
        return (endpoint, *self.rest(body))

    def own(self, body: bytes) -> Own | None:
        """The values in the holes; None if they are not plain, or differ where they must be equal."""
        own = self._own(body)
        if b"".join(own).translate(None, _PLAIN):
            return None
        name = b""
        if names := own[self._names]:
            name = names[0]
            if name.translate(None, RANDOM) or names.count(name) != len(names):
                return None
        if tokens := own[self._tokens]:
            token = tokens[0]
            if token.translate(None, _LOWER) or tokens.count(token) != len(tokens):
                return None
        return Own(own[0], name)


Key = tuple[str | bytes, ...]
"""An endpoint, and a body without its holes."""


class Place(NamedTuple):
    """The place of a value in `Bodies`."""

    length: int
    form: Form
    key: Key


class Bodies(Generic[T]):
    """Values that are found by the bytes of a review of any replica."""

    def __init__(self) -> None:
        self._forms: dict[int, dict[Form, dict[Key, T]]] = {}

    def __len__(self) -> int:
        return sum(len(kept) for forms in self._forms.values() for kept in forms.values())

    def find(self, endpoint: str, body: bytes) -> tuple[T, Own] | None:
        """The value for a body, and the body's own values."""
        for form, kept in self._forms.get(len(body), _NONE).items():
            own = form.own(body)
            if own is not None:
                found = kept.get(form.key(endpoint, body))
                if found is not None:
                    return found, own
        return None

    def add(self, endpoint: str, body: bytes, form: Form, value: T) -> Place | None:
        """Add a value for a body; None if there are too many forms, or the body has a value."""
        forms = self._forms.setdefault(len(body), {})
        if form not in forms and len(forms) >= MAX_FORMS:
            return None
        kept = forms.setdefault(form, {})
        key = form.key(endpoint, body)
        if key in kept:
            return None
        kept[key] = value
        return Place(len(body), form, key)

    def remove(self, place: Place) -> None:
        forms = self._forms[place.length]
        del forms[place.form][place.key]
        if not forms[place.form]:
            del forms[place.form]
        if not forms:
            del self._forms[place.length]

    def clear(self) -> None:
        self._forms.clear()


def _may_vary(request: Request, canonical: Canonical) -> bool:
    """Whether replicas with other name suffixes have the same canonical form and log line."""
    if canonical.name:  # another replica's name may occur in further places
        text, prefix = canonical.text, canonical.name[: -len(CONSTANT)]
        starts = list(islice(_starts(text, prefix), MAX_HOLES + 1))
        after = (start + len(prefix) for start in starts)
        ends = (text[start : start + len(CONSTANT)] for start in after)
        if len(starts) > MAX_HOLES or not all(end.translate(None, RANDOM) for end in ends):
            return False
    named = (str(request.kind), request.namespace, request.name, request.username, request.subresource)
    return not canonical.token or canonical.token.decode() not in " ".join(named)


def _cut(slices: Iterable[slice]) -> Callable[[bytes], tuple[bytes, ...]]:
    first, *others = slices
    if not others:
        return lambda body: (body[first],)
    return cast(Callable[[bytes], tuple[bytes, ...]], itemgetter(first, *others))


def _holes(body: bytes, request: Request, canonical: Canonical) -> list[_Hole] | None:
    if body.count(b"\\u") != sum(map(body.count, _ESCAPES)):  # plain characters may be written as escapes
        return None
    uid = request.uid
    values = Counter(value for obj in (request.object, request.old_object) for value in _own_values(obj))
    if not _VALUE.fullmatch(uid) or len(values) > MAX_VALUES:
        return None
    wanted = [(uid.encode(), 1, "uid"), *((value.encode(), times, "") for value, times in values.items())]
    if canonical.name:
        wanted.append((canonical.name, places(request, canonical.name.decode()), "name"))
    if canonical.token:
        wanted.append(
            (canonical.token, canonical.text.count(b'"%s"' % with_constant(canonical.token)), "token")
        )
    if sum(times for _, times, _ in wanted) > MAX_HOLES:
        return None
    holes: list[_Hole] = []
    for value, times, kind in wanted:
        starts = list(islice(_starts(body, b'"%s"' % value), times + 1))
        if len(starts) != times:
            return None
        length = len(CONSTANT) if kind in ("name", "token") else len(value)
        ends = (start + 1 + len(value) for start in starts)
        holes += (_Hole(end - length, end, kind) for end in ends)
    # A value only: with another replica's value, a key could be equal to another key of its object.
    return holes if all(body[hole.end + 1] in b",]}" for hole in holes) else None


def _own_values(obj: Json | None) -> Iterator[str]:
    """The plain values that the canonical form replaces by constants."""
    metadata = obj.get("metadata") if obj is not None else None
    if type(metadata) is not dict:
        return
    managed = metadata.get("managedFields")
    times = (each.get("time") for each in managed if type(each) is dict) if type(managed) is list else ()
    for value in (*map(metadata.get, _FIELDS), *times):
        if type(value) is str and _VALUE.fullmatch(value):
            yield value


def _starts(text: bytes, wanted: bytes) -> Iterator[int]:
    at = text.find(wanted)
    while at >= 0:
        yield at
        at = text.find(wanted, at + 1)
