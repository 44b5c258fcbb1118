"""The flags that `review` and `scan` share, and the exit status that follows from them."""

from __future__ import annotations

import argparse
from pathlib import Path

from webhook.cli.exit_status import DENIED, OK
from webhook.cli.output.review import Tally
from webhook.cli.output.show import add_color
from webhook.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that `review` and `scan` share."""
    parser.add_argument(
        "--profile", choices=("observe", "standard", "strict"), help="instead of the policy's profile"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "diff", "json", "yaml", "junit", "sarif", "html"),
        default="text",
        help="default: %(default)s",
    )
    parser.add_argument(
        "--split-by-namespace",
        type=Path,
        metavar="DIR",
        help="with -o html: write index.html and a page for each namespace into a directory",
    )
    parser.add_argument(
        "--statistics",
        action="store_true",
        help="print figures only: warnings per 100 workloads by rule, refusals, fragments, kinds and files "
        "that were not read; with -o json for programs",
    )
    parser.add_argument(
        "--unknown-kinds",
        choices=("warn", "error", "ignore"),
        default="warn",
        help="objects of unknown kinds: name and count them, also exit with 1, or only count them; "
        "default: %(default)s",
    )
    add_color(parser)
    parser.add_argument("--warnings-as-errors", action="store_true", help="exit with 1 on warnings too")


def check(args: argparse.Namespace) -> None:
    """UserError where flags do not go together."""
    if args.split_by_namespace and args.output != "html":
        raise UserError("--split-by-namespace goes with -o html")
    if args.statistics and args.output not in ("text", "json"):
        raise UserError("--statistics goes with -o text or json")


def exit_status(tally: Tally, args: argparse.Namespace) -> int:
    """0: all admitted; 1: something denied, or warned of or of an unknown kind where that is an error."""
    unknown = args.unknown_kinds == "error" and tally.unknown
    return DENIED if tally.denied or unknown or (args.warnings_as_errors and tally.warned) else OK
