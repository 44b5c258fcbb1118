"""What reading commands may cost: a budget of steps, which every reader takes from.

Anyone who may create a pod chooses the text that is read here, so the cost of a review has a limit. It is
counted in steps, never in seconds: the same text costs the same on every machine, and is undecided on all or
on none.
"""

from __future__ import annotations

REVIEW_STEPS = 200_000
"""What all the commands of one review may cost together."""

CHARACTERS = 64
"""Characters that are scanned or copied for one step."""


class BudgetSpent(Exception):
    """The budget is spent: the rest of the text stays unread."""


class Budget:
    """Steps that reading may take; one budget covers all the commands of a review.

    A step is about a microsecond's work: a word of a script, a node of a syntax tree, or the scanning of
    64 characters.
    """

    __slots__ = ("limit", "spent")

    def __init__(self, limit: int = REVIEW_STEPS) -> None:
        self.limit = limit
        self.spent = 0

    def spend(self, steps: int) -> None:
        """Take `steps` off the budget. Raises BudgetSpent where that is more than is left of it."""
        self.spent += steps
        if self.spent > self.limit:
            raise BudgetSpent

    def scan(self, characters: int) -> None:
        """Take what it costs to scan or copy so many characters. Raises BudgetSpent."""
        self.spent += 1 + characters // CHARACTERS
        if self.spent > self.limit:
            raise BudgetSpent
