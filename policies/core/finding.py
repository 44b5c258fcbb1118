"""Findings: hazards that a rule or a mutator reports at one field of one object, and the modes that decide
their effect."""

from __future__ import annotations

from enum import Enum, StrEnum

from msgspec import Struct


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


class Certainty(Enum):
    """The certainty of a finding; it limits the mode."""

    CERTAIN = "certain"
    """The rule's mode applies."""
    LIKELY = "likely"
    """The rule's mode for likely findings applies."""
    UNDECIDED = "undecided"
    """The known facts don't decide it: a warning at most, in every profile."""
    DOUBTFUL = "doubtful"
    """Only likely, and undecided: at most the mode of likely findings."""

    @property
    def is_open(self) -> bool:
        """Whether the known facts don't decide it."""
        return self in (Certainty.UNDECIDED, Certainty.DOUBTFUL)

    def in_doubt(self) -> Certainty:
        """The certainty of the same finding about uncertain pods."""
        return Certainty.UNDECIDED if self in (Certainty.CERTAIN, Certainty.UNDECIDED) else Certainty.DOUBTFUL


class Finding(Struct, frozen=True):
    """One hazard at one field of one object."""

    path: str
    """A field path such as `spec.template.spec.containers[0].livenessProbe`."""
    message: str
    """One sentence why."""
    hint: str
    """One sentence how to fix it."""
    certainty: Certainty = Certainty.CERTAIN
    covered_by: str = ""
    """Id of the rule that reports the same: if that rule warns, this finding of a mutator is not shown."""
    value: int | None = None
    """What `chassis fix` writes into the field, if one number repairs it."""
