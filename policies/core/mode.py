"""Modes and profiles: what a mutator or a rule may do."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """What a policy or a rule may do; the order is the order of strength."""

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
    """A mode for everything at once; explicit modes win over it."""

    OBSERVE = "observe"
    STANDARD = "standard"
    STRICT = "strict"
