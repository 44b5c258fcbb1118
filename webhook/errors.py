"""The one error that ends in a sentence for the person who gave us something that can't be used; the text of
any other."""

from __future__ import annotations


class UserError(Exception):
    """The user's input can't be used. Each problem is one sentence, shown as it is."""

    def __init__(self, *problems: object) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems: tuple[object, ...] = problems


def message_of(error: BaseException) -> str:
    """The text of an error; the name of its type if it has none."""
    return str(error) or type(error).__name__
