"""Printing reviews in one of the formats of `--output`, as they come."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

from policies.kube.printable import printable
from webhook.cli.output.review import Review, Subject, Tally
from webhook.cli.output.text import Line

_FOR_PROGRAMS: Final = ("json", "yaml", "junit")
"""Every format is a module of this package, which is imported where it is asked for."""


def show(
    reviews: Iterable[Review],
    output: str,
    subject: Subject,
    split_by_namespace: Path | None = None,
    *,
    figures_only: bool = False,
) -> Tally:
    """Print reviews in a format, or only their figures, or write them as pages into a directory; what there
    was among them."""
    tally = Tally()
    seen = tally.seeing(reviews)
    if figures_only:
        from webhook.cli.output.statistics import statistics

        figures = statistics(seen, subject)
        if output == "json":
            sys.stdout.write(figures.json())
        else:
            show_lines(figures.lines())
    elif output == "html":
        from webhook.cli.output.html import page

        if split_by_namespace:
            namespaces = page.split(seen, subject, split_by_namespace)
            print(f"{split_by_namespace / 'index.html'}, and a page for each of {namespaces} namespaces")
        else:
            sys.stdout.writelines(page.pieces(seen, subject))
    elif output == "sarif":
        sys.stdout.writelines(_format(output).pieces(seen, subject))
    elif output in _FOR_PROGRAMS:
        sys.stdout.writelines(_format(output).pieces(seen))
    else:
        show_lines(_format(output).lines(seen))
    return tally


def _format(output: str) -> ModuleType:
    return import_module(f"webhook.cli.output.{output}")


def add_color(parser: argparse.ArgumentParser) -> None:
    """The flag of commands that print lines. `webhook.cli.main` hands it on as NO_COLOR or FORCE_COLOR."""
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="default: on a terminal, unless NO_COLOR or FORCE_COLOR is set",
    )


def show_lines(lines: Iterable[Line]) -> None:
    """Print lines, in colour on a terminal.

    NO_COLOR means never and FORCE_COLOR always (no-color.org, force-color.org); NO_COLOR wins.
    """
    terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    coloured = not os.environ.get("NO_COLOR") and (terminal or bool(os.environ.get("FORCE_COLOR")))
    for line, style in lines:
        shown = printable(line)
        print(_styled(shown, style) if coloured else shown)


def _styled(line: str, style: str) -> str:
    codes = ";".join(str(_CODES[word]) for word in style.split())
    return f"\x1b[{codes}m{line}\x1b[0m" if codes else line


_CODES: Final = {"bold": 1, "red": 31, "green": 32, "yellow": 33, "magenta": 35, "cyan": 36}
