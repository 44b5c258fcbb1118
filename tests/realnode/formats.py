"""Figures as people read them."""

from __future__ import annotations


def seconds(value: float | None) -> str:
    """A time."""
    return "never" if value is None else f"{value:.0f} s"


def share(value: float | None) -> str:
    """A share."""
    return "none sent" if value is None else f"{value:.1%}"


def times(count: int, what: str = "restart") -> str:
    """How many of something."""
    return f"{'no' if count == 0 else count} {what}{'' if count == 1 else 's'}"
