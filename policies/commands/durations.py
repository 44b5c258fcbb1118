"""How long commands take: what their texts state."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|us|µs|ns|s|m|h|d)?", re.ASCII)
_SECONDS = {"ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str, unit: float = 1.0) -> float | None:
    """`5`, `0.5`, `2m`, `1m30s`, `500ms` -> seconds; a bare number counts in `unit` seconds."""
    if not text or len(text) > 40:
        return None
    at, total = 0, 0.0
    while at < len(text):  # piece by piece: one regex for the whole tries every way to cut its digits
        piece = _DURATION.match(text, at)
        if piece is None:
            return None
        total += float(piece[1]) * (_SECONDS[piece[2]] if piece[2] else unit)
        at = piece.end()
    return total


def slept(arguments: Sequence[str]) -> float | None:
    """The seconds of a `sleep`, which adds up its arguments; None if it states none."""
    return sum(seconds(word) or 0.0 for word in arguments) or None


def limited(length: float, limit: float | None) -> float:
    """The seconds of a command inside `timeout N`, which may take all of them if it states none."""
    if limit is None:
        return length
    return min(length, limit) if length else limit


def looped(once: float, count: int | None, *, ends: bool) -> float:
    """The seconds of a loop, from those of a round: without end, a known number of rounds, or one."""
    if once <= 0:
        return once
    if not ends:
        return math.inf
    return once if count is None else once * count
