"""Findings: statements of a rule or a mutator about one place of one object."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Certainty(Enum):
    """How sure a rule is of one finding; it caps the mode in which the finding is answered."""

    CERTAIN = "sure"
    """The hazard is certain: the rule's own mode applies."""
    LIKELY = "likely"
    """The W half of a rule marked E/W: the profile's mode for likely findings applies."""
    UNDECIDED = "undecided"
    """It can't be decided from the known facts: at most a warning, in every profile."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One statement of a rule or a policy about one place of one object.

    `path` is a Kubernetes field path such as `spec.template.spec.containers[0].livenessProbe`;
    `message` one sentence why, `hint` one sentence how to fix it.
    """

    path: str
    message: str
    hint: str
    certainty: Certainty = Certainty.CERTAIN
    covered_by: str = ""
    """Id of the rule that reports the same: where that one warns, a mutator's finding is not shown."""
