"""Generates the completion scripts from the parsers; a part of `make docs`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

import shtab

from policies.core import registry
from webhook.cli.completion import SHELLS
from webhook.cli.main import whole_parser
from webhook.config.load import rules

FILES: Final = frozenset({"PATH", "FILE", "DIR", "WHERE", "POLICY", "OLD", "NEW"})
"""What the place of a file is called in the help."""


def scripts() -> dict[str, str]:
    """Every script: its file's name and its text."""
    parser = whole_parser()
    for action in _actions(parser):
        if action.metavar in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # where shtab looks for it
        elif action.metavar == "RULE|POLICY|kinds":
            action.choices = ["kinds", *rules(), *registry.mutators()]
    return {f"chassis.{shell}": shtab.complete(parser, shell) for shell in SHELLS}


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # argparse has no public way to them
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
