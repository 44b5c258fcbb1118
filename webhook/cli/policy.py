"""`chassis policy`: check a policy, or print its JSON Schema."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from webhook.cli.exit_status import OK
from webhook.errors import UserError

if TYPE_CHECKING:
    from webhook.admission.configuration import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands of `chassis policy`."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check = commands.add_parser("check", help="whether the policy in a directory loads; exit 2 if not")
    check.add_argument("directory", type=Path, metavar="DIR")
    check.set_defaults(run=_check)
    commands.add_parser("schema", help="print the JSON Schema of a policy").set_defaults(run=_schema)


def _check(args: argparse.Namespace) -> int:
    config = read_policy(args.directory)
    print(f"{args.directory}: the policy is good (profile {config.rules.profile}, digest {config.digest})")
    return OK


def _schema(_: argparse.Namespace) -> int:
    from webhook.config.load import schema

    print(json.dumps(schema(), indent=2))
    return OK


def read_policy(directory: Path | None, profile: str | None = None) -> Config:
    """The policy in a directory, or the built-in one; UserError if it can't be had."""
    from webhook.config.load import load

    files: Mapping[str, str] = {}
    if directory is not None:
        from webhook.config.source import read_directory

        try:
            files = read_directory(directory)
        except OSError as error:
            raise UserError(f"{directory}: {error.strerror}") from None
    config = load(files)
    return config if profile is None else config.with_profile(profile)
