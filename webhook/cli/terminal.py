"""Text for a person at a terminal: notes, questions, progress, colour, paragraphs and tables."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TextIO, TypeAlias, TypeVar

import orjson

from webhook.admission.printable import printable, printable_json

T = TypeVar("T")
Line: TypeAlias = tuple[str, str]
"""A line of text with its style: a colour's name, `bold`, both, or empty."""

WIDTH: Final = 78
"""Columns of the paragraphs of `chassis explain`."""
PROGRESS_AFTER_SECONDS: Final = 0.5
PROGRESS_EVERY_SECONDS: Final = 0.1
_CLEAR_LINE: Final = "\r\x1b[K"
_STYLES: Final = {"bold": 1, "red": 31, "green": 32, "yellow": 33, "magenta": 35, "cyan": 36}


def print_note(sentence: str) -> None:
    """Print a sentence on standard error."""
    print(printable(f"chassis: {sentence}"), file=sys.stderr)


def confirmed(question: str) -> bool:
    """Ask a question; True if the answer is yes."""
    print(f"{question} [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def print_lines(lines: Iterable[Line]) -> None:
    """Print lines, in colour on a terminal.

    NO_COLOR means never and FORCE_COLOR always (no-color.org, force-color.org); NO_COLOR wins.
    """
    terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    colored = not os.environ.get("NO_COLOR") and (terminal or bool(os.environ.get("FORCE_COLOR")))
    for line, style in lines:
        text, codes = printable(line), ";".join(str(_STYLES[word]) for word in style.split())
        print(f"\x1b[{codes}m{text}\x1b[0m" if colored and codes else text)


def width() -> int:
    """The columns of decisions and reasons: those of the terminal, from 40 to 100."""
    return max(40, min(100, shutil.get_terminal_size().columns)) if sys.stdout.isatty() else 100


def wrapped(text: str, first: str = "  ", others: str = "") -> list[str]:
    """Text in lines of WIDTH columns: `first` before the first one, `others` (or the same) before the others.
    No word is broken: people copy names and commands."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=others or first,
        break_long_words=False,
        break_on_hyphens=False,
    )


def progress(
    label: str,
    stream: TextIO | None = None,
    env: Mapping[str, str] = os.environ,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[Iterable[T]], Generator[T, None, None]]:
    """Pass items on and show their number on standard error, such as `1,024 files read`.

    The line appears after half a second and is cleared at the end. It does not appear in CI, or if standard
    error is not a terminal that can clear a line.
    """
    stream = stream or sys.stderr
    enabled = stream.isatty() and env.get("TERM") != "dumb" and not (env.get("CI") or env.get("NO_COLOR"))

    def watch(items: Iterable[T]) -> Generator[T, None, None]:
        due, printed = clock() + PROGRESS_AFTER_SECONDS, False
        try:
            for count, item in enumerate(items):
                if enabled and clock() >= due:
                    stream.write(f"{_CLEAR_LINE}{count:,} {label}")
                    stream.flush()
                    due, printed = clock() + PROGRESS_EVERY_SECONDS, True
                yield item
        finally:
            if printed:
                stream.write(_CLEAR_LINE)
                stream.flush()

    return watch


def as_json(value: Any) -> str:
    """Indented JSON with a final line end."""
    return printable_json(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()) + "\n"


def table(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A header and a line for each row; a column is as wide as its widest cell."""
    cells = [[name.upper() for name in columns], *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n"
