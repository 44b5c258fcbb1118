"""How long commands take, as far as their text shows."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|us|µs|ns|s|m|h|d)?", re.ASCII)
_SECONDS = {"ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str, unit: float = 1.0) -> float | None:
    """`5`, `0.5`, `2m`, `1m30s`, `500ms` -> seconds; a number without a unit counts in `unit` seconds."""
    if not text or len(text) > 40:
        return None
    at, total = 0, 0.0
    while at < len(text):  # part by part: one regex for the whole text tries every way to split its digits
        part = _DURATION.match(text, at)
        if part is None:
            return None
        total += float(part[1]) * (_SECONDS[part[2]] if part[2] else unit)
        at = part.end()
    return total


def slept(arguments: Sequence[str]) -> float | None:
    """The seconds of `sleep`, which adds up its arguments; None if they contain no duration."""
    return sum(seconds(word) or 0.0 for word in arguments) or None


def limited(duration: float, limit: float) -> float:
    """The seconds of a command inside `timeout N`: all of them if the command itself sets no time."""
    return min(duration, limit) if duration else limit


def looped(once: float, count: int | None, *, ends: bool) -> float:
    """The seconds of a loop from those of a round."""
    if once <= 0:
        return once
    if not ends:
        return math.inf
    return once if count is None else once * count
