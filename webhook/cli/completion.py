"""`chassis completion`: a completion script for a shell."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Final

from webhook.cli.flags import OK

SHELLS: Final = ("bash", "zsh", "fish")
FILES: Final = frozenset({"PATH", "FILE", "DIR", "WHERE", "POLICY", "OLD", "NEW"})
"""The metavars of arguments that name a file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print the completion script of a shell. bash: source <(chassis completion bash). zsh: chassis "
        "completion zsh > a directory of $fpath, as _chassis. fish: chassis completion fish | source."
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    sys.stdout.write(script(args.shell))
    return OK


def script(shell: str) -> str:
    """The script for one of `SHELLS`, from the parsers of all commands."""
    import shtab

    from policies.core import registry
    from webhook.cli.main import whole_parser
    from webhook.cli.server_pages import server_names
    from webhook.config.load import rules

    parser = whole_parser()
    for action in _actions(parser):
        if action.metavar in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab reads this attribute
        elif action.metavar == "RULE|POLICY|SERVER|kinds":
            action.choices = ["kinds", *rules(), *registry.mutators(), *server_names()]
    return shtab.complete(parser, shell)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # argparse has no public attribute
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
