"""The one error that ends in a sentence for the person who gave us something that can't be used."""

from __future__ import annotations


class UserError(Exception):
    """The user's input can't be used. Each problem is one sentence, shown as it is."""

    def __init__(self, *problems: object) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems: tuple[object, ...] = problems
