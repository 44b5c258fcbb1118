"""Field paths (`spec.containers[0].image`), and paths with wildcards (`spec.groups[*].template`), with which
the table of workload kinds locates pod templates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from policies.kube.json import Json, dig, replaced, text
from policies.kube.quantities import whole_number

Steps: TypeAlias = tuple[str | int, ...]
"""The keys and indices that lead to a value in an object."""


def maps_at(obj: Any, path: str) -> Iterator[tuple[Steps, dict[str, Any]]]:
    """Every map at a path with wildcards, such as `spec.replicas.*`, with its steps."""
    return ((steps, value) for steps, value in every_value_at(obj, path) if isinstance(value, dict))


def every_value_at(obj: Any, path: str) -> Iterator[tuple[Steps, Any]]:
    """Every value at a path with wildcards, with its steps."""
    return _walk(obj, _wildcard_steps(path), ())


def map_above(obj: Any, path: str, steps: Steps) -> tuple[Steps, dict[str, Any]] | None:
    """The map at a path with wildcards on the way of `steps`, with its own steps; None if there is none."""
    at: list[str | int] = []
    for name in _wildcard_steps(path):
        if len(at) == len(steps):
            return None
        step = steps[len(at)]
        if name not in (step, "[*]" if isinstance(step, int) else "*"):
            return None
        at.append(step)
        obj = dig(obj, step)
    return (tuple(at), obj) if isinstance(obj, dict) else None


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
    """Steps as Kubernetes writes them: `spec.containers[0].env`, `metadata.labels[a.b/c]`."""
    path = ""
    for step in steps:
        if isinstance(step, int) or not step.replace("_", "").replace("-", "").isalnum():
            path += f"[{step}]"
        else:
            path += f".{step}" if path else step
    return path


def named_path(obj: Any, steps: Iterable[str | int]) -> str:
    """`field_path` with the names of list elements that have one: `spec.containers[api].image`."""
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


def steps_in(obj: Any, path: str) -> Steps:
    """The steps of a field path in an object; list elements go by index or by name."""
    steps: list[str | int] = []
    for segment in segments(path):
        step = _step_in(obj, segment)
        obj = dig(obj, step)
        steps.append(step)
    return tuple(steps)


def value_at(obj: Any, path: str) -> Any:
    """The value at a field path, or None."""
    return dig(obj, *steps_in(obj, path))


def named(obj: Any, path: str) -> tuple[str, ...]:
    """The segments of a field path, with the names of list elements instead of their indices: they stay the
    same if another container is inserted first."""
    names = []
    for segment in segments(path):
        obj = dig(obj, _step_in(obj, segment))
        names.append((segment.isdigit() and text(obj, "name")) or segment)
    return tuple(names)


def scopes(path: str) -> Iterator[str]:
    """The field paths above a field path, from the whole object ("") down, and the path itself."""
    yield ""
    yield from (path[:end] for end, character in enumerate(path) if character in ".[")
    yield path


def without(obj: Json, paths: Sequence[str]) -> Json:
    """The object without the fields at some paths."""
    for path in paths:
        *above, last = steps_in(obj, path)
        parent = dig(obj, *above)
        if isinstance(parent, dict) and last in parent:
            obj = replaced(obj, above, {key: value for key, value in parent.items() if key != last})
        elif isinstance(parent, list) and isinstance(last, int):
            obj = replaced(obj, above, [*parent[:last], *parent[last + 1 :]])
    return obj


def _step_in(parent: Any, segment: str) -> str | int:
    """A segment as a key, or as the index of the list element with this index or name."""
    if not isinstance(parent, list):
        return segment
    index = whole_number(segment)
    if index is not None:
        return index
    names = ((text(item, "name"), text(item, "key")) for item in parent)
    return next((index for index, own in enumerate(names) if segment in own), segment)
