"""The known name that a misspelt name means."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Final

_LONGEST: Final = 200
"""Characters: a name that a user wrote is compared with every known one."""


def closest(name: str, known: Iterable[str], least: float = 0.6) -> str:
    """The known name that comes closest, of those at least so alike (0 to 1); empty where none does."""
    if len(name) > _LONGEST:
        return ""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=least)), "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: `; did you mean timeout?`, or an empty text."""
    close = closest(name, known)
    return f"; did you mean {close}?" if close else ""


def holding(words: str, known: Iterable[str]) -> Sequence[str]:
    """The known names that hold the words of a name, in any order: `probes` is held by `standard-probes`."""
    wanted = set(words.lower().replace("_", "-").split("-"))
    return [name for name in known if wanted <= set(name.split("-"))]
