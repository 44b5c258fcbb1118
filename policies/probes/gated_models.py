"""Models that a hub gives only to users with a permission."""

from __future__ import annotations

from fnmatch import fnmatchcase

from policies.core import data
from policies.core.settings import Field, Model


class Gated(Model):
    """An entry of `gated_models.yaml`."""

    models: tuple[str, ...] = Field(min_length=1, description="globs of names of models")
    source: str = Field(pattern=r"^https://")


_gated = data.entries(Gated, __package__, "gated_models.yaml")


def is_gated(model: str) -> bool:
    """Whether the hub refuses a model of this name without a token."""
    return any(fnmatchcase(model, glob) for each in _gated() for glob in each.models)
