"""Print reviews in one of the formats of `--output`, one by one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module

from msgspec import Struct

from webhook.cli.flags import BAD_INPUT, DENIED, OK
from webhook.cli.reviewed import Reviewed, Subject
from webhook.cli.terminal import print_lines


class _Tally(Struct):
    """Whether any review was denied, had warnings, was of an unknown kind, or of an unreadable manifest."""

    denied: bool = False
    warned: bool = False
    unknown: bool = False
    unreadable: bool = False

    def count(self, reviews: Iterable[Reviewed]) -> Iterator[Reviewed]:
        for review in reviews:
            self.denied |= not review.decision.allowed
            self.unknown |= review.coverage.unknown
            self.unreadable |= review.unreadable
            self.warned |= bool(review.warnings or review.decision.crashes)
            yield review


def show(reviews: Iterable[Reviewed], subject: Subject, args: argparse.Namespace) -> int:
    """Print reviews as the flags of `flags.add_review_output` choose, and return the exit status."""
    tally = _Tally()
    counted = tally.count(reviews)
    if args.statistics:
        from webhook.cli.output.statistics import statistics

        figures = statistics(counted, subject)
        if args.output == "json":
            sys.stdout.write(figures.json())
        else:
            print_lines(figures.lines())
    else:
        module = "html.page" if args.output == "html" else args.output
        written = import_module(f"webhook.cli.output.{module}")  # only the chosen format is loaded
        if args.output in ("text", "diff"):
            print_lines(written.lines(counted, audited=args.audited))
        else:
            sys.stdout.writelines(written.pieces(counted, subject))
    if tally.unreadable:
        return BAD_INPUT
    unknown = args.unknown_kinds == "error" and tally.unknown
    return DENIED if tally.denied or unknown or (args.warnings_as_errors and tally.warned) else OK
