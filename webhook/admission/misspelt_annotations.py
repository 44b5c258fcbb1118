"""Misspelt annotations of this project: they would have no effect, and no warning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from policies.core.annotations import CHANGED, DOMAIN, OF_HEALTH, OTHERS
from policies.core.suggestions import closest

_PREFIX: Final = f"{DOMAIN}/"
_KNOWN: Final = frozenset((*OF_HEALTH, *OTHERS, CHANGED))
_ALIKE: Final = 0.78
"""How much alike two names are of which one is taken for the other, from 0 to 1."""
_MOST_COMPARED: Final = 8


def misspelt_annotations(annotations: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each annotation that is not known and comes close to one that is.

    For annotations about health, standard-probes reports it at the pods that they concern.
    """
    unknown = [key for key in annotations if key.startswith(_PREFIX) and key not in _KNOWN]
    for key in unknown[:_MOST_COMPARED]:
        close = closest(key.removeprefix(_PREFIX).lower(), _NAMES, _ALIKE)
        if _PREFIX + close in OTHERS:
            yield f"annotation {key} is not known and has no effect; did you mean {_PREFIX}{close}?"


_NAMES: Final = tuple(known.removeprefix(_PREFIX) for known in (*OF_HEALTH, *OTHERS))
