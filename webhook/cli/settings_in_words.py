"""Types, units and defaults of settings in words, from their models."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import orjson
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from policies.core.finding import Mode
from policies.core.settings import Model
from policies.kube import quantities as units


def kind_of_field(field: FieldInfo, shared: dict[type[Model], None]) -> str:
    """The type of a field with its bounds, as markdown; models are links, and are added to `shared`."""
    kind = _unit(field.metadata) or _type(field.annotation, shared)
    signs = ((Ge, "ge", "≥"), (Gt, "gt", ">"), (Le, "le", "≤"), (Lt, "lt", "<"))
    bounds = [
        f"{sign} {getattr(bound, name)}"
        for bound in field.metadata
        for cls, name, sign in signs
        if isinstance(bound, cls)
    ]
    return f"{kind}, {' and '.join(bounds)}" if bounds else kind


def _unit(metadata: Sequence[Any]) -> str:
    names = {units.parse_duration: "duration", units.parse_bytes: "size"}
    for item in metadata:
        if isinstance(item, BeforeValidator) and item.func in names:
            return names[item.func]
    return ""


def _type(annotation: Any, shared: dict[type[Model], None]) -> str:
    """A type in words; models become links to their section."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _unit(arguments[1:]) or _type(arguments[0], shared)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_type(item, shared) for item in arguments if item is not type(None))
    if origin is typing.Literal:
        return " or ".join(f"`{item}`" for item in arguments)
    if origin is not None and issubclass(origin, Mapping):
        return f"map of {_type(arguments[1], shared)}"
    if origin is not None and issubclass(origin, Sequence | set | frozenset):
        return f"list of {_type(arguments[0], shared)}"
    if isinstance(annotation, type) and issubclass(annotation, Model):
        shared.setdefault(annotation)
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    if annotation is Mode:
        return "mode"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{item.value}`" for item in annotation)
    plain = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`", Any: "anything"}
    return plain.get(annotation, getattr(annotation, "__name__", str(annotation)))


def default_of_field(field: FieldInfo) -> str:
    """The default of a field as markdown; empty if there is none."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value == "" or (isinstance(value, Sequence | Mapping) and not value):
        return ""
    if isinstance(value, Model):
        return "its defaults"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"`{_with_unit(value, _unit(field.metadata))}`"
    if isinstance(value, Mapping) or (isinstance(value, Sequence) and isinstance(value[0], Model)):
        return f"{len(value)} built in"
    return f"`{_json(value)}`"


def _with_unit(value: int, unit: str) -> str:
    scales = {
        "duration": (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)),
        "size": (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)),
    }
    for suffix, factor in scales.get(unit, ()):
        if value and value % factor == 0:
            return f"{value // factor}{suffix}"
    return str(value)


def _json(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text.strip('"') if isinstance(value, str) else text.replace(",", ", ")
