"""Reading unvalidated JSON, and editing it by copy-on-write.

Objects may come from files that no API server has validated: every reader returns an empty value for a field
that is absent or of the wrong type, so mutators and rules need no type checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

Json: TypeAlias = dict[str, Any]
"""A JSON object as the API server sent it; unknown fields included, never a typed client model."""

MAX_LEVELS: Final = 200
"""Levels of nesting that are read of an object; orjson can write about fifty more."""


def dig(obj: Any, *path: str | int) -> Any:
    """The value at a path of keys and indices, or None."""
    for step in path:
        # JSON has no subclasses: comparing exact types is faster, and this is called everywhere.
        if type(obj) is dict:
            obj = obj.get(step)
        elif type(obj) is list and type(step) is int and -len(obj) <= step < len(obj):
            obj = obj[step]
        else:
            return None
    return obj


def mapping(obj: Any, *path: str | int) -> Json:
    """The map at a path; empty if it is absent or of another type."""
    found = obj
    for step in path:  # `dig` without the call, here and below: a review calls this hundreds of times
        if type(found) is not dict:
            found = dig(obj, *path)
            break
        found = found.get(step)
    return found if isinstance(found, dict) else {}


def maps(obj: Any, *path: str | int) -> list[Json]:
    """The maps in the list at a path, without other elements; `indexed_maps` keeps their indices."""
    found = obj
    for step in path:
        if type(found) is not dict:
            found = dig(obj, *path)
            break
        found = found.get(step)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def indexed_maps(obj: Any, *path: str | int) -> list[tuple[int, Json]]:
    """The maps in the list at a path, each with its index in that list."""
    value = dig(obj, *path)
    return (
        [(n, item) for n, item in enumerate(value) if isinstance(item, dict)]
        if isinstance(value, list)
        else []
    )


def text(obj: Any, *path: str | int) -> str:
    """The string at a path; empty if it is absent or of another type."""
    found = obj
    for step in path:
        if type(found) is not dict:
            found = dig(obj, *path)
            break
        found = found.get(step)
    return found if isinstance(found, str) else ""


def integer(obj: Any, *path: str | int, default: int) -> int:
    """The integer at a path; the default if it is absent or of another type."""
    value = dig(obj, *path)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def strings(obj: Any, *path: str | int) -> list[str]:
    """The strings in the list at a path."""
    found = obj
    for step in path:
        if type(found) is not dict:
            found = dig(obj, *path)
            break
        found = found.get(step)
    return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []


def texts(obj: Any, *path: str | int) -> dict[str, str]:
    """The map at a path without values that are no strings, such as the data of a ConfigMap."""
    return {key: value for key, value in mapping(obj, *path).items() if isinstance(value, str)}


def replaced(obj: Json, path: Iterable[str | int], value: Any) -> Json:
    """A copy of `obj` with `value` at `path`, which shares everything that is not on the path.

    Creates missing maps; an index must exist, or be the list's length to append. If a value on the path has
    another type, the result is `obj` itself: the API server will refuse it.
    """
    result: list[Any] = [obj]
    copy: Any = result
    step: str | int = 0
    for below in path:  # `copy[step]` is the next value to copy, with `below` inside it
        present, kind = copy[step], dict if isinstance(below, str) else list
        if present is not None and not isinstance(present, kind):
            return obj
        copy[step] = kind(present or ())
        copy, step = copy[step], below
        if kind is dict:
            copy.setdefault(below, None)
        elif below == len(copy):
            copy.append(None)
    present = copy[step]
    if present is not None and type(present) is not type(value) and not _are_numbers(present, value):
        return obj
    copy[step] = value
    replaced: Json = result[0]
    return replaced


def _are_numbers(one: Any, other: Any) -> bool:
    return {type(one), type(other)} <= {int, float}


def appended(obj: Json, path: Iterable[str | int], *values: Any) -> Json:
    """A copy with values appended to the list at a path, which is created if it is absent."""
    steps = tuple(path)
    present = dig(obj, *steps)
    if present is not None and not isinstance(present, list):
        return obj
    return replaced(obj, steps, [*(present or ()), *values])
