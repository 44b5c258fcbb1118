"""The base models of the configuration, and the types of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

import orjson
from msgspec import Struct
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from policies.core.mode import Mode
from policies.kube import quantities
from policies.kube.names import _LABEL, is_label_key, is_label_value


class Model(BaseModel):
    """A frozen piece of configuration: camelCase in YAML, unknown keys refused, no coercion."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        alias_generator=to_camel,
        populate_by_name=True,
        # A command uses only some models; a nested model is built with its parent.
        defer_build=True,
    )


class Retired(Struct, frozen=True):
    """A setting that no longer exists: a policy that names it loads without it."""

    instead: str
    """One sentence: the present behaviour, and the replacement."""
    off_with: frozenset[str] = frozenset()
    """Values that turn the policy off, since it would do harm without the setting."""


class Settings(Model):
    """The settings of one policy: the content of its key `<policy id>.yaml`."""

    retired: ClassVar[Mapping[str, Retired]] = {}
    """Settings of earlier releases, by name in YAML."""

    mode: Mode | None = Field(None, description="enforce, warn, audit or off; if absent, the profile's mode")


class Thresholds(Model):
    """Limits that the rules use."""

    endless_sidecars: tuple[str, ...] = Field(
        (),
        description="further images, by the end of their repository (`team/audit-proxy`), that run until "
        "they are asked to stop, for the rule job-sidecar-blocks-completion",
    )


S = TypeVar("S", bound=Model)


def validated(model: type[S], data: Any) -> S:
    """Settings from plain data. Raises pydantic's ValidationError.

    Converts through JSON, since only there pydantic's strict mode accepts a list for a tuple.
    """
    return model.model_validate_json(orjson.dumps({} if data is None else data))


Duration = Annotated[
    int,
    BeforeValidator(quantities.parse_duration),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}),
]
"""Whole seconds; written as a number of seconds or as `90s`, `15m`, `24h`, `7d`, `1h30m`."""


Quantity = Annotated[
    int,
    BeforeValidator(quantities.parse_bytes),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}),
]
"""Bytes; written as a number or as a Kubernetes quantity such as `40Gi` or `500M`."""


class SettingsLookup(Protocol):
    """The effective settings for one object."""

    def __call__(self, model: type[S], /) -> S: ...


def default_settings(model: type[S], /) -> S:
    """The defaults of a model: one instance, so values derived from it are computed once."""
    value = _defaults(model)
    assert isinstance(value, model)
    return value


@cache
def _defaults(model: type[Model]) -> Model:
    # Needs no validator, which takes milliseconds to build.
    return model.model_construct()


def _label_key(text: str) -> str:
    if not is_label_key(text):
        raise ValueError(f"{text!r} is not a label key")
    return text


def _label_value(text: str) -> str:
    if not is_label_value(text):
        raise ValueError(f"{text!r} is not a label value")
    return text


LabelKey = Annotated[str, AfterValidator(_label_key)]
LabelValue = Annotated[str, AfterValidator(_label_value)]
ContainerName = Annotated[str, Field(pattern=rf"^{_LABEL}$", max_length=50)]
"""A container's name, with room for a suffix that makes it unique."""


AbsolutePath = Annotated[str, Field(pattern=r"^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$")]
