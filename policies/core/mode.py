"""Modes and profiles."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """The effect of a rule or policy, weakest first."""

    OFF = "off"
    AUDIT = "audit"
    WARN = "warn"
    ENFORCE = "enforce"

    @property
    def strength(self) -> int:
        return _STRENGTH[self]

    def at_most(self, other: Mode) -> Mode:
        """The weaker of two modes."""
        return self if self.strength <= other.strength else other


_STRENGTH = {mode: n for n, mode in enumerate(Mode)}


class Profile(StrEnum):
    """The default modes of all rules and policies."""

    OBSERVE = "observe"
    STANDARD = "standard"
    STRICT = "strict"
