"""The base classes of all types.

A field that is absent or null has its default: an empty text, tuple or map, False, or None where rules
distinguish absence from a value. Names are the API's in snake_case, except for a few that are shortened.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias, dataclass_transform

import msgspec

IntOrString: TypeAlias = int | str
"""A number, or a text such as a percentage or the name of a port."""
Quantity: TypeAlias = str | int | float
"""An amount such as `500m`, `40Gi` or 2; `policies.kube.quantities` parses it."""

EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})
"""The map of a field that is absent."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Part(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True):
    """A map inside an object. Not a part of garbage collection, since JSON has no cycles."""
