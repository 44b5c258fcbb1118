"""How long a call may take: the caller's `?timeout=`, less what the answer's way back needs."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

DEFAULT_TIMEOUT: Final = 10.0
LONGEST_TIMEOUT: Final = 30.0
DEADLINE_MARGIN: Final = 0.1
"""Share of the caller's timeout that is left for the answer's way back."""
_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?")


def patience(timeout: str) -> float:
    """Seconds from the first byte on within which a call is answered that has this `?timeout=`."""
    return seconds_of(timeout) * (1 - DEADLINE_MARGIN)


@lru_cache(64)
def seconds_of(value: str) -> float:
    """Seconds in the `?timeout=` of a call, written by Go (`5s`, `1m0s`, `500ms`); unknown text counts as
    none given."""
    match = _DURATION.fullmatch(value)
    hours, minutes, seconds, millis = (float(part or 0) for part in match.groups()) if match else (0,) * 4
    total = hours * 3600 + minutes * 60 + seconds + millis / 1000
    return min(total, LONGEST_TIMEOUT) if total else DEFAULT_TIMEOUT
