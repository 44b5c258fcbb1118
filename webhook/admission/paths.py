"""Following Kubernetes field paths (`spec.containers[0].image`) through an object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from policies.kube.objects import dig, text


def _segments(path: str) -> list[str]:
    """`a.b[0].c` -> a, b, 0, c; keys with dots stand in brackets."""
    result, rest = [], path
    while rest:
        if rest[0] == "[":
            inner, _, rest = rest[1:].partition("]")
            result.append(inner)
        else:
            end = min((n for n in (rest.find("."), rest.find("[")) if n >= 0), default=len(rest))
            result.append(rest[:end])
            rest = rest[end:]
        rest = rest.removeprefix(".")
    return result


def _steps(obj: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Each segment of a field path with the value that it leads to (None beyond the end)."""
    for segment in _segments(path):
        obj = dig(obj, int(segment)) if isinstance(obj, list) and segment.isdigit() else dig(obj, segment)
        yield segment, obj


def value_at(obj: Any, path: str) -> Any:
    """The value that a path leads to, or None."""
    value = obj
    for _, value in _steps(obj, path):  # noqa: B007  # the last one is the answer
        pass
    return value


def named(obj: Any, path: str) -> tuple[str, ...]:
    """A field path with the names of list elements in place of their indices.

    So that a container put in front of another does not make the other's findings look new.
    """
    return tuple(
        (segment.isdigit() and text(value, "name")) or segment for segment, value in _steps(obj, path)
    )


def scopes(path: str) -> Iterator[str]:
    """The places that a field path lies in, from the whole object ("") to itself."""
    yield ""
    yield from (path[:end] for end, character in enumerate(path) if character in ".[")
    yield path
