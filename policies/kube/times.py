"""Times of the API, and seconds since the epoch."""

from __future__ import annotations

from datetime import UTC, datetime


def seconds_of(moment: str) -> float | None:
    """A time of the API in seconds since the epoch; None if it is malformed."""
    try:
        return datetime.fromisoformat(moment).timestamp() if moment else None
    except (ValueError, OverflowError):
        return None


def moment_of(seconds: float, timespec: str = "seconds") -> str:
    """Seconds since the epoch as the API writes them; a MicroTime with `timespec` "microseconds"."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")
