"""Pydantic's check of a user's text: every problem with its path, and the JSON Schema.

For each model of `policies.core.settings` a pydantic model is made of the same fields, at first use. Its
result is the msgspec Struct.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial, reduce
from itertools import islice
from operator import or_
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import orjson
from msgspec import NODEFAULT, structs
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    create_model,
)
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic.json_schema import models_json_schema
from pydantic_core import CoreSchema, core_schema

from policies.core.settings import MAX_PROBLEMS, After, Before, Declared, Invalid, Model, S
from policies.kube.names import did_you_mean


class _Written(BaseModel):
    """A model as a user writes it."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        alias_generator=to_camel,
        populate_by_name=True,
        # A command uses only some models; a nested model is built with its parent.
        defer_build=True,
    )


def validated(model: type[S], data: Any) -> S:
    """A value from plain data. Raises Invalid.

    Converts through JSON, since only there pydantic's strict mode accepts a list for a tuple.
    """
    return from_json(model, orjson.dumps({} if data is None else data))


def from_json(model: type[S], text: str | bytes) -> S:
    """A value from JSON. Raises Invalid."""
    try:
        value: S = _adapter(model).validate_json(text)
    except ValidationError as error:
        raise Invalid(islice(_problems(error, model), MAX_PROBLEMS)) from None
    return value


def fields_of(model: type[Model]) -> Mapping[str, FieldInfo]:
    """The fields of a model by name, with their types, constraints and descriptions."""
    return pydantic_model(model).model_fields


@cache
def pydantic_model(model: type[Model]) -> type[BaseModel]:
    """The pydantic model of the same name with the same fields."""
    found: dict[str, Any] = {}
    for each in structs.fields(model):
        declared = model.__declared__.get(each.name) or Declared(each.default, each.default_factory, {})
        defaults = {"default": declared.default, "default_factory": declared.default_factory}
        given: dict[str, Any] = {name: value for name, value in defaults.items() if value is not NODEFAULT}
        found[each.name] = (_type(each.type), Field(**given, **declared.constraints))
    return create_model(
        model.__name__, __base__=_Written, __module__=model.__module__, __doc__=model.__doc__, **found
    )


def json_schemas(models: Mapping[str, type[Model]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON Schema of each model by the given name, and the definitions that they share."""
    inputs = {name: pydantic_model(model) for name, model in sorted(models.items())}
    found, shared = models_json_schema([(model, "validation") for model in inputs.values()], by_alias=True)
    return {name: found[model, "validation"] for name, model in inputs.items()}, shared["$defs"]


class _AsStruct:
    """A marker in a type annotation: pydantic checks the made model, and the result is the Struct."""

    def __init__(self, model: type[Model]) -> None:
        self.model = model

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        checked = handler.generate_schema(pydantic_model(self.model))
        return core_schema.no_info_after_validator_function(partial(_struct, self.model), checked)


def _struct(model: type[S], checked: BaseModel) -> S:
    given = checked.model_fields_set
    value = model(**{name: getattr(checked, name) for name in given})
    value.__dict__["given"] = frozenset(given)
    return value


@cache
def _adapter(model: type[Model]) -> TypeAdapter[Any]:
    return TypeAdapter(_type(model))


def _type(hint: Any) -> Any:
    """A type with pydantic's constraints in place of ours."""
    origin, args = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Model):
        return Annotated[hint, _AsStruct(hint)]
    if origin is Annotated:
        return Annotated[(_type(args[0]), *(found for each in args[1:] for found in _constraints(each)))]
    if origin is Literal or not args:
        return hint
    inner = tuple(map(_type, args))
    return reduce(or_, inner) if origin is types.UnionType else origin[inner]


def _constraints(ours: object) -> Iterator[object]:
    if isinstance(ours, Declared):
        yield Field(**ours.constraints)
    elif isinstance(ours, After):
        yield AfterValidator(ours.check)
    elif isinstance(ours, Before):
        yield BeforeValidator(ours.convert)
        if ours.schema is not None:
            yield WithJsonSchema(ours.schema)


_EXPECTED: Final[Mapping[str, str]] = {
    "bool_type": "true or false is expected",
    "dict_type": "a map is expected, such as {key: value}",
    "float_type": "a number is expected",
    "int_type": "a whole number is expected",
    "missing": "this field is required",
    "model_type": "a map of fields is expected",
    "string_type": "text is expected",
    "tuple_type": "a list is expected, such as [a, b]",
}
"""What pydantic calls an array, an object or a string, in the words of YAML, by the type of its error."""


def _problems(error: ValidationError, model: type[Model]) -> Iterator[tuple[str, str]]:
    """The path and the sentence of each problem, with suggestions for unknown fields."""
    for item in error.errors(include_url=False):
        path = ".".join(str(step) for step in item["loc"])
        message = _EXPECTED.get(item["type"], item["msg"].removeprefix("Value error, "))
        if item["type"] == "extra_forbidden":
            *parents, field = item["loc"]
            message = f"unknown field{did_you_mean(str(field), _fields_at(model, parents))}"
        elif item["type"] == "enum" and item["input"] is False and "'off'" in message:
            message = 'write "off" in quotes: a tool such as Helm read the bare word as the boolean false'
        yield path, message[:1].lower() + message[1:]


def _fields_at(model: type[Model], path: Iterable[str | int]) -> Iterable[str]:
    """The fields of the model at a path."""
    for step in path:
        field = next((f for name, f in fields_of(model).items() if step in (name, f.alias)), None)
        if field is not None:  # else an index, or the key of a map
            inner = _model_in(field.annotation)
            if inner is None:
                return ()
            model = inner
    return [field.alias or name for name, field in fields_of(model).items()]


def _model_in(annotation: Any) -> type[Model] | None:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model_in(each))), None)
