"""Kubernetes' spelling of a place in an object (`spec.containers[0].image`), written and
followed; and paths with wildcards, with which the table of workload kinds locates pod templates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from policies.kube.json import Json, dig, replaced, text

Steps: TypeAlias = tuple[str | int, ...]
"""The keys and indices that lead to a place in an object."""


def maps_at(obj: Any, path: str) -> Iterator[tuple[Steps, dict[str, Any]]]:
    """Every map at a path, such as `spec.groups[*].template` or `spec.replicas.*`, with the way to it."""
    return ((steps, value) for steps, value in every_value_at(obj, path) if isinstance(value, dict))


def every_value_at(obj: Any, path: str) -> Iterator[tuple[Steps, Any]]:
    """Every value at such a path, with the way to it."""
    return _walk(obj, _wildcard_steps(path), ())


@lru_cache(maxsize=1024)
def _wildcard_steps(path: str) -> tuple[str, ...]:
    """`spec.groups[*].template` -> ("spec", "groups", "[*]", "template")."""
    return tuple(step for name in path.split(".") for step in name.replace("[*]", "\0[*]").split("\0"))


def _walk(obj: Any, steps: tuple[str, ...], at: Steps) -> Iterator[tuple[Steps, Any]]:
    if not steps:
        yield at, obj
        return
    head, rest = steps[0], steps[1:]
    if head == "[*]":
        for n, item in enumerate(obj if isinstance(obj, list) else ()):
            yield from _walk(item, rest, (*at, n))
    elif isinstance(obj, dict):
        for key in obj if head == "*" else (head,):
            if key in obj:
                yield from _walk(obj[key], rest, (*at, key))


def field_path(steps: Iterable[str | int]) -> str:
    """Kubernetes' spelling of a path: `spec.containers[0].env`, `metadata.labels[a.b/c]`."""
    path = ""
    for step in steps:
        if isinstance(step, int) or not step.replace("_", "").replace("-", "").isalnum():
            path += f"[{step}]"
        else:
            path += f".{step}" if path else step
    return path


def named_path(obj: Any, steps: Iterable[str | int]) -> str:
    """`field_path` with the names of list elements, where they have one: `spec.containers[api].image`."""
    spelled: list[str | int] = []
    path = ""
    for step in steps:
        obj = dig(obj, step)
        name = text(obj, "name") if isinstance(step, int) else ""
        if name:
            path += f"{field_path(spelled)}[{name}]" if not path else f".{field_path(spelled)}[{name}]"
            spelled = []
        else:
            spelled.append(step)
    rest = field_path(spelled)
    return path + (f".{rest}" if path and rest and not rest.startswith("[") else rest)


def segments(path: str) -> list[str]:
    """`a.b[0].c` -> a, b, 0, c; keys with dots are in brackets."""
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
    for segment in segments(path):
        obj = dig(obj, _step_in(obj, segment))
        yield segment, obj


def steps_in(obj: Any, path: str) -> Steps:
    """The steps of a field path in an object, indices of lists as numbers."""
    steps: list[str | int] = []
    for segment in segments(path):
        at = int(segment) if isinstance(obj, list) and segment.isdigit() else segment
        obj = dig(obj, at)
        steps.append(at)
    return tuple(steps)


def value_at(obj: Any, path: str) -> Any:
    """The value that a path leads to, or None; list elements go by index or by name."""
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


def without(obj: Json, paths: Sequence[str]) -> Json:
    """The object without the fields at some paths."""
    for path in paths:
        *above, last = segments(path)
        parent: Any = obj
        steps: list[str | int] = []
        for segment in above:
            step = _step_in(parent, segment)
            parent, steps = dig(parent, step), [*steps, step]
        step = _step_in(parent, last)
        if isinstance(parent, dict) and last in parent:
            obj = replaced(obj, steps, {key: value for key, value in parent.items() if key != last})
        elif isinstance(parent, list) and isinstance(step, int):
            obj = replaced(obj, steps, [*parent[:step], *parent[step + 1 :]])
    return obj


def _step_in(parent: Any, segment: str) -> str | int:
    """The key, or the index of the element that goes by a name."""
    if not isinstance(parent, list):
        return segment
    if segment.isdigit():
        return int(segment)
    names = ((text(item, "name"), text(item, "key")) for item in parent)
    return next((index for index, own in enumerate(names) if segment in own), segment)
