"""Warnings in lines, as the API server passes them on.

Source: https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence, Set
from typing import Final

from webhook.admission.printable import printable

WARNING_LENGTH = 120
"""Characters of one warning. The API server logs longer ones as a fault of the webhook."""
WIDTH = 71
"""Characters of a line of several words. kubectl writes `Warning: ` in front of it and wraps nothing, and a
terminal has 80 columns."""
WARNINGS_LENGTH = 4096
"""Characters of all warnings together. The API server drops the rest."""


def fitted(warnings: Sequence[str]) -> list[str]:
    """The warnings in lines of WIDTH, as the API server passes them on.

    Long warnings continue in indented lines. A longer word, such as a field path, has a line to itself. If
    all of them exceed WARNINGS_LENGTH, a line with the number of the others follows those that fit.
    """
    distinct = list(dict.fromkeys(warnings))
    wrapped: list[list[str]] = []
    size = 0
    seen: set[str] = set()
    for warning in distinct:
        wrapped.append(_wrapped(warning, seen))
        seen.update(wrapped[-1])
        size += _size(wrapped[-1])
        if size > WARNINGS_LENGTH:
            break
    else:
        return [line for lines in wrapped for line in lines]
    while True:
        rest = f"and {len(distinct) - len(wrapped)} more: chassis review"
        if size + len(rest) <= WARNINGS_LENGTH:
            return [*(line for lines in wrapped for line in lines), rest]
        size -= _size(wrapped.pop())


def _wrapped(warning: str, seen: Set[str]) -> list[str]:
    """The lines of a warning, none of which is equal to an earlier one: the API server and kubectl would drop
    it."""
    line = " ".join(warning.split())[: WARNINGS_LENGTH + 1]  # a longer line does not fit in any case
    line = printable(line)  # the API server drops warnings with control characters
    words = line.split(" ")
    long = max(map(len, words)) > WARNING_LENGTH - len(_INDENT)
    lines: list[str] = []
    for width in (*range(WIDTH, WIDTH // 2, -1), *range(WIDTH, WARNING_LENGTH)):
        if long:
            lines = textwrap.wrap(
                line, width, subsequent_indent=_INDENT, break_on_hyphens=False, break_long_words=True
            )
        else:
            lines = _filled(words, width)
        if seen.isdisjoint(lines):
            break
    return lines


_INDENT: Final = "  "


def _filled(words: Sequence[str], width: int) -> list[str]:
    """`textwrap.wrap` with whole words, at a tenth of its cost."""
    lines, line = [], ""
    for word in words:
        if not line:
            line = word
        elif len(line) + 1 + len(word) <= width:
            line += f" {word}"
        else:
            lines.append(line)
            line = _INDENT + word
    return [*lines, line] if line else lines


def _size(lines: Sequence[str]) -> int:
    return sum(map(len, lines))
