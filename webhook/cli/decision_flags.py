"""The flags that `review` and `scan` share, and the exit status that follows from them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from webhook.cli.exit_status import DENIED, OK

if TYPE_CHECKING:
    from webhook.cli.output.review import Tally


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that `review` and `scan` share."""
    parser.add_argument(
        "--profile", choices=("observe", "standard", "strict"), help="instead of the policy's profile"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "diff", "json", "yaml", "junit", "sarif"),
        default="text",
        help="default: %(default)s",
    )
    parser.add_argument("--warnings-as-errors", action="store_true", help="exit with 1 on warnings too")


def exit_status(tally: Tally, args: argparse.Namespace) -> int:
    """0: all admitted; 1: something denied, or warned of where that counts as an error."""
    return DENIED if tally.denied or (args.warnings_as_errors and tally.warned) else OK
