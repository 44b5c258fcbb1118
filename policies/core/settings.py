"""The base of the configuration's models, and the types of their fields.

A model is a msgspec Struct. pydantic checks the texts that users write, with models that
`policies.core.pydantic_models` makes of these. A command that reads no such text never loads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    dataclass_transform,
    overload,
)

import msgspec
from msgspec import NODEFAULT, Struct, StructMeta, field
from msgspec.structs import FieldInfo, fields

from policies.core.finding import Mode
from policies.kube import quantities
from policies.kube.json import Json
from policies.kube.names import _LABEL, is_label_key, is_label_value

T = TypeVar("T")

MAX_PROBLEMS: Final = 50
"""Reported problems: suggestions for a thousand unknown names would take a second."""


# --- the declaration of fields -------------------------------------------------------------------


class Constraints(TypedDict, total=False):
    """The arguments of pydantic's `Field` besides the default."""

    description: str
    ge: float
    gt: float
    le: float
    lt: float
    pattern: str
    min_length: int
    max_length: int


class Declared(Struct, frozen=True, eq=False):
    """A field as declared in a model, or constraints in a type."""

    default: Any
    default_factory: Any
    constraints: Constraints


@overload
def Field(default: T, /, **constraints: Unpack[Constraints]) -> T: ...
@overload
def Field(*, default_factory: Callable[[], T], **constraints: Unpack[Constraints]) -> T: ...
@overload
def Field(**constraints: Unpack[Constraints]) -> Any: ...
def Field(  # noqa: N802 - named as pydantic's
    default: Any = NODEFAULT, /, *, default_factory: Any = NODEFAULT, **constraints: Unpack[Constraints]
) -> Any:
    """A field of a model, declared as with pydantic's `Field`; without a default it is required."""
    return Declared(default, default_factory, constraints)


class _ModelMeta(StructMeta):
    """Gives msgspec the default of each declared field, and keeps the declarations for pydantic."""

    __declared__: Mapping[str, Declared]

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any) -> Any:
        own = {key: value for key, value in namespace.items() if isinstance(value, Declared)}
        for key, each in own.items():
            if each.default_factory is not NODEFAULT:
                namespace[key] = field(default_factory=each.default_factory)
            else:
                namespace[key] = field(default=each.default)
        made = super().__new__(cls, name, bases, namespace, kw_only=True, **config)
        inherited = (getattr(base, "__declared__", {}) for base in bases)
        made.__declared__ = {**{key: each for base in inherited for key, each in base.items()}, **own}
        return made


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Model(Struct, metaclass=_ModelMeta, frozen=True, dict=True, rename="camel", forbid_unknown_fields=True):
    """A frozen piece of configuration: camelCase in YAML, unknown keys refused, no coercion."""

    @cached_property
    def given(self) -> frozenset[str]:
        """The fields that a user wrote; if none did, the fields that differ from their defaults."""
        return frozenset(each.name for each in fields(self) if getattr(self, each.name) != _default(each))


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


# --- values from texts -----------------------------------------------------------------------------


class Invalid(ValueError):
    """A text does not fit its model: the path and one sentence of each problem, at most MAX_PROBLEMS."""

    def __init__(self, problems: Iterable[tuple[str, str]]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{path}: {message}" for path, message in self.problems))


class Before(Struct, frozen=True, eq=False):
    """A function in a type annotation. It converts the written value before pydantic checks the type."""

    convert: Callable[[Any], object]
    schema: Json | None = None
    """The JSON Schema of the written value, if it differs from that of the type."""


class After(Struct, frozen=True, eq=False):
    """A function in a type annotation. It returns the value, or refuses it with a ValueError."""

    check: Callable[[Any], object]


_NUMBER_OR_TEXT: Final[Json] = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}
Duration = Annotated[int, Before(quantities.parse_duration, _NUMBER_OR_TEXT)]
"""Whole seconds; written as a number of seconds or as `90s`, `15m`, `24h`, `7d`, `1h30m`."""
Quantity = Annotated[int, Before(quantities.parse_bytes, _NUMBER_OR_TEXT)]
"""Bytes; written as a number or as a Kubernetes quantity such as `40Gi` or `500M`."""


def fields_as_json(value: Model) -> Json:
    """All fields of a value, as they are written in YAML."""
    found: Json = msgspec.json.decode(msgspec.json.encode(value))
    return found


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
    return model()


def _default(declared: FieldInfo) -> Any:
    factory = declared.default_factory
    return declared.default if factory is NODEFAULT else factory()


def _label_key(text: str) -> str:
    if not is_label_key(text):
        raise ValueError(f"{text!r} is not a label key")
    return text


def _label_value(text: str) -> str:
    if not is_label_value(text):
        raise ValueError(f"{text!r} is not a label value")
    return text


LabelKey = Annotated[str, After(_label_key)]
LabelValue = Annotated[str, After(_label_value)]
ContainerName = Annotated[str, Field(pattern=rf"^{_LABEL}$", max_length=50)]
"""A container's name, with room for a suffix that makes it unique."""


AbsolutePath = Annotated[str, Field(pattern=r"^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$")]
