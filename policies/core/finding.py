"""Findings: hazards that a rule or a mutator reports at one field of one object."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Certainty(Enum):
    """The certainty of a finding; it limits the mode."""

    CERTAIN = "sure"
    """The rule's mode applies."""
    LIKELY = "likely"
    """The rule's mode for likely findings applies."""
    UNDECIDED = "undecided"
    """The known facts don't decide it: a warning at most, in every profile."""


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
