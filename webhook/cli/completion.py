"""`chassis completion`: the script by which a shell completes commands, flags, rules and files.

The scripts are generated from the parsers (`webhook.cli.docs`) and are next to this module.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from webhook.cli.exit_status import OK

SHELLS: Final = ("bash", "zsh")
SCRIPTS: Final = Path(__file__).with_name("completions")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The argument of `chassis completion`."""
    parser.description = (
        "Print the completion script of a shell. bash: source <(chassis completion bash). zsh: "
        "chassis completion zsh > a directory of $fpath, as _chassis."
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the script; the exit status."""
    sys.stdout.write((SCRIPTS / f"chassis.{args.shell}").read_text(encoding="utf-8"))
    return OK
