"""A limit on the work of reading commands.

Anyone who may create a pod chooses the text that is read here, so the work of a review is limited. It is
counted in steps, not in seconds: the same text costs the same on every machine, and is undecided on all or
on none.
"""

from __future__ import annotations

REVIEW_STEPS = 200_000
"""The budget of all the commands of one review."""

CHARACTERS = 64
"""The number of characters that are scanned or copied for one step."""


class BudgetSpent(Exception):
    """The budget is spent; the rest of the text is not read."""


class StepBudget:
    """The steps that reading may take; one budget covers all the commands of a review.

    A step is about a microsecond's work: a word of a script, a node of a syntax tree, or the scanning of
    64 characters.
    """

    __slots__ = ("limit", "spent")

    def __init__(self, limit: int = REVIEW_STEPS) -> None:
        self.limit = limit
        self.spent = 0

    def spend(self, steps: int) -> None:
        """Raises BudgetSpent if fewer than `steps` are left."""
        self.spent += steps
        if self.spent > self.limit:
            raise BudgetSpent

    def scan(self, characters: int) -> None:
        """Spend the steps for scanning or copying `characters` characters. Raises BudgetSpent."""
        self.spent += 1 + characters // CHARACTERS
        if self.spent > self.limit:
            raise BudgetSpent
