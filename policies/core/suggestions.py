"""Suggestions for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Final

_MAX_LENGTH: Final = 200
"""Characters: the name is compared with every known one."""


def closest(name: str, known: Iterable[str], least: float = 0.6) -> str:
    """The most similar known name, with a similarity of `least` (0 to 1) or more; empty if there is none."""
    if len(name) > _MAX_LENGTH:
        return ""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=least)), "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: `; did you mean timeout?`, or an empty text."""
    close = closest(name, known)
    return f"; did you mean {close}?" if close else ""


def containing(words: str, known: Iterable[str]) -> Sequence[str]:
    """The known names that contain the words of a name in any order: `standard-probes` contains `probes`."""
    wanted = set(words.lower().replace("_", "-").split("-"))
    return [name for name in known if wanted <= set(name.split("-"))]
