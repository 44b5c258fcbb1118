"""Warnings about misspelt annotations of this project, which have no effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from policies.core.annotations import CHANGED, DOMAIN, OF_HEALTH, OTHERS
from policies.core.suggestions import closest

_PREFIX: Final = f"{DOMAIN}/"
_KNOWN: Final = frozenset((*OF_HEALTH, *OTHERS, CHANGED))
_SIMILARITY: Final = 0.78
"""From 0 to 1. A name at least this similar to a known one is taken for a misspelling."""
_MAX_COMPARED: Final = 8


def misspelt_annotations(annotations: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each unknown annotation that is similar to a known one.

    standard-probes itself reports misspelt annotations about health.
    """
    unknown = [key for key in annotations if key.startswith(_PREFIX) and key not in _KNOWN]
    for key in unknown[:_MAX_COMPARED]:
        close = closest(key.removeprefix(_PREFIX).lower(), _NAMES, _SIMILARITY)
        if _PREFIX + close in OTHERS:
            yield f"annotation {key} is unknown and has no effect; did you mean {_PREFIX}{close}?"


_NAMES: Final = tuple(known.removeprefix(_PREFIX) for known in (*OF_HEALTH, *OTHERS))
