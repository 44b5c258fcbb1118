"""Printing reviews in one of the formats of `--output`, as they come."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

from webhook.cli.output.review import Review, Subject, Tally
from webhook.cli.output.text import Line

_FOR_PROGRAMS: Final = ("json", "yaml", "junit")
"""Every format is a module of this package, which is imported where it is asked for."""


def show(
    reviews: Iterable[Review], output: str, subject: Subject, split_by_namespace: Path | None = None
) -> Tally:
    """Print reviews in a format, or write them as pages into a directory; what there was among them."""
    tally = Tally()
    seen = tally.seeing(reviews)
    if output == "html":
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


def show_lines(lines: Iterable[Line]) -> None:
    """Print lines, in colour on a terminal.

    NO_COLOR says never and FORCE_COLOR always (no-color.org, force-color.org); where both do, never.
    """
    forced = bool(os.environ.get("FORCE_COLOR"))
    if os.environ.get("NO_COLOR") or not (forced or sys.stdout.isatty()):
        for line, _ in lines:
            print(line)
        return
    from rich.console import Console
    from rich.text import Text

    # Forced, a terminal that says nothing of itself (TERM=dumb in CI) still gets the eight colours of all.
    console = Console(highlight=False, force_terminal=True, color_system="standard" if forced else "auto")
    for line, style in lines:
        console.print(Text(line, style=style), soft_wrap=True)
