"""Converting JSON to types, the one place where a value of a wrong type is found.

Kubernetes treats null as absent, and so does `read`. The API server sends objects of its own kinds without
nulls in the fields of these types, so only objects with nulls are converted twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from policies.kube.json import Json

T = TypeVar("T", bound=msgspec.Struct)

_EXPECTED: Final = re.compile(
    r"Expected `(?P<expected>[^`]+)`, got `(?P<got>[^`]+)`(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?",
    re.DOTALL,
)
_NAMES: Final = {str: "str", bool: "bool", int: "int", float: "float", type(None): "null"}
_ANY: Final = "..."
_STEP: Final = re.compile(r"\.\.\.|[^.\[\]]+")


class WrongTypeError(Exception):
    """A value of another type than the API's: `spec.replicas: expected int, got str`."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path, self.problem = path, problem


def read(obj: Json, as_type: type[T]) -> T:
    """The object as a type, without the fields that the type does not have. Raises WrongTypeError."""
    try:
        return msgspec.convert(obj, as_type)
    except msgspec.ValidationError:
        pass
    cleaned = without_nulls(obj)
    try:
        return msgspec.convert(cleaned, as_type)
    except msgspec.ValidationError as error:
        raise _wrong_type(cleaned, str(error)) from None


def without_nulls(obj: Any) -> Any:
    """A copy of JSON without the fields that are null. Nulls in lists stay, because each has an index."""
    result: list[Any] = []
    copied: list[tuple[Any, Any]] = [([obj], result)]
    for source, target in copied:  # the list grows; no recursion, because files may be nested deeply
        for key, value in source.items() if type(source) is dict else enumerate(source):
            if type(value) is dict or type(value) is list:
                copy: Any = {} if type(value) is dict else []
                copied.append((value, copy))
            elif value is None and type(source) is dict:
                continue
            else:
                copy = value
            if type(source) is dict:
                target[key] = copy
            else:
                target.append(copy)
    return result[0]


def _wrong_type(obj: Json, message: str) -> WrongTypeError:
    found = _EXPECTED.match(message)
    if found is None:
        return WrongTypeError("", message)
    path, got = found["path"] or "", found["got"]
    if _ANY in path:
        path = _with_keys(obj, path, got)
    return WrongTypeError(path, f"expected {found['expected'].removesuffix(' | null')}, got {got}")


def _with_keys(obj: Any, path: str, got: str) -> str:
    """The path of the first value of a type at a path with maps whose keys msgspec leaves out; that path if
    there is none."""
    return next(_values_at(obj, _STEP.findall(path), "", got), path)


def _values_at(node: Any, steps: Sequence[str], path: str, got: str) -> Iterator[str]:
    if not steps:
        if _name_of(node) == got:
            yield path
        return
    step, *rest = steps
    inside: list[tuple[Any, str]] = []
    if isinstance(node, list) and step.isdigit() and int(step) < len(node):
        inside = [(int(step), f"{path}[{step}]")]
    elif isinstance(node, dict) and step == _ANY:
        inside = [(key, f"{path}[{key}]") for key in node]
    elif isinstance(node, dict) and step in node:
        inside = [(step, f"{path}.{step}" if path else step)]
    for key, at in inside:
        yield from _values_at(node[key], rest, at, got)


def _name_of(value: object) -> str:
    return _NAMES.get(type(value), "object" if isinstance(value, dict) else "array")


def readable(obj: Json, as_type: type[T]) -> T | None:
    """The object as a type; None if it cannot be read, which the review of the object itself reports."""
    try:
        return read(obj, as_type)
    except WrongTypeError:
        return None
