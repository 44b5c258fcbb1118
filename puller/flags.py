"""Flags that can also be set in the environment. Shared by the puller and the webhook; imports only the
standard library.

With the prefix `CHASSIS_`, `--log-level` can be set as `CHASSIS_LOG_LEVEL`. The command line has precedence.
Values from the environment are checked like arguments.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol


class FlagGroup(Protocol):
    """A parser or a group of arguments."""

    def add_argument(self, *names: str, **options: Any) -> argparse.Action: ...


class Flags:
    """Adds flags whose defaults come from the environment."""

    def __init__(self, prefix: str, env: Mapping[str, str]) -> None:
        self._prefix, self._env = prefix, env

    def variable(self, flag: str) -> str:
        return self._prefix + flag.removeprefix("--").replace("-", "_").upper()

    def add(self, container: FlagGroup, *names: str, help: str, **options: Any) -> None:
        """`add_argument`, with the default from the environment. Commas separate the items of a list."""
        variable = self.variable(names[0])
        value = self._env.get(variable)
        if value is not None:
            # argparse converts a default of type str, but does not check it against `choices`.
            options["default"] = value.split(",") if options.get("action") == "append" else value
        if (choices := options.pop("choices", None)) is not None:
            options |= {"type": one_of(choices), "metavar": f"{{{','.join(choices)}}}"}
        container.add_argument(*names, help=f"{help} [{variable}]".strip(), **options)


def one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """Like argparse's `choices`, but also for values from the environment."""

    def check(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return check


def boolean(text: str) -> bool:
    """`true` or `false`, in any case, or 1 or 0. ArgumentTypeError for anything else."""
    known = {"true": True, "1": True, "false": False, "0": False, "": False}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return known[text.lower()]


SWITCHED: Final[Mapping[str, Any]] = {"type": boolean, "nargs": "?", "const": True, "default": False}
"""A flag that is off by default and needs no value; `true` or `false` in the environment."""
