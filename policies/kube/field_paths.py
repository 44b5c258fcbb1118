"""Finding what stands at a path with wildcards: where the table of kinds keeps pod templates."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeAlias

Steps: TypeAlias = tuple[str | int, ...]
"""The keys and indices that lead to a place in an object."""


def maps_at(obj: Any, path: str) -> Iterator[tuple[Steps, dict[str, Any]]]:
    """Every map at a path, such as `spec.groups[*].template` or `spec.replicas.*`, with the way to it."""
    return _walk(obj, _steps(path), ())


@lru_cache(maxsize=1024)
def _steps(path: str) -> tuple[str, ...]:
    """`spec.groups[*].template` -> ("spec", "groups", "[*]", "template")."""
    return tuple(step for name in path.split(".") for step in name.replace("[*]", "\0[*]").split("\0"))


def _walk(obj: Any, steps: tuple[str, ...], at: Steps) -> Iterator[tuple[Steps, dict[str, Any]]]:
    if not steps:
        if isinstance(obj, dict):
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
