"""Paragraphs of `chassis explain` on a terminal."""

from __future__ import annotations

import textwrap
from typing import Final

WIDTH: Final = 78


def wrapped(text: str, first: str = "  ", others: str = "") -> list[str]:
    """Text in lines with `first` before the first one, and `others` (or the same) before the others. No word
    is broken: people copy names and commands."""
    wrapper = textwrap.TextWrapper(WIDTH, first, others or first)
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return wrapper.wrap(text)
