"""The programs that a shell certainly starts as child processes, instead of replacing itself by them.

Measured with dash 0.5.12, bash 5.2 and busybox ash 1.35 as the first process of a container, with 46 forms
of script. All of them fork for a command in a pipeline, in the background, in a loop, or before another
command. They differ for the last command of a script, which is therefore left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from policies.commands.model import BudgetSpent, StepBudget
from policies.commands.programs import SHELLS, shell_operands
from policies.commands.shell import ShellError, parse
from policies.commands.syntax import Case, Command, Group, If, Loop, Redirected, Script, Simple

_SIGNAL_HANDLERS: Final = ("trap", "exec", "kill", "tini", "dumb-init", "catatonit", "supervisord")
"""Words of scripts that may pass signals on to child processes."""


def children(argv: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The words of each program that the shell in `argv` starts as a child process and waits for.

    Yields nothing if `argv` is not a shell with a script, if the script cannot be read, or if it may handle
    signals.
    """
    script = _script(argv)
    if script is None or any(word in script for word in _SIGNAL_HANDLERS):
        return
    try:
        tree = parse(script, StepBudget())
    except (ShellError, BudgetSpent):
        return
    for command in _forked(tree, followed=False):
        words = tuple(word.literal or "$" for word in command.words)
        if words:
            yield words


def _script(argv: Sequence[str]) -> str | None:
    """The script of `sh -c`."""
    if not argv or argv[0].rpartition("/")[2] not in SHELLS:
        return None
    has_script, operands = shell_operands(argv[1:])
    return operands[0] if has_script and operands else None


def _forked(script: Script, *, followed: bool) -> Iterator[Simple]:
    """The commands that the shell forks for. `followed`: another command comes after the script."""
    for n, item in enumerate(script.items):
        commands = item.pipeline.commands
        forks = followed or item.background or n + 1 < len(script.items) or len(commands) > 1
        for command in commands:
            yield from _forked_in(command, followed=forks)


def _forked_in(command: Command, *, followed: bool) -> Iterator[Simple]:
    match command:
        case Simple():
            if followed:
                yield command
        case Redirected():
            yield from _forked_in(command.command, followed=followed)
        case Group():
            yield from _forked(command.body, followed=followed)
        case Loop():
            yield from _forked(command.body, followed=True)
        case Case():
            for arm in command.arms:
                yield from _forked(arm, followed=followed)
        case If():
            for _, body in command.branches:
                yield from _forked(body, followed=followed)
            if command.otherwise is not None:
                yield from _forked(command.otherwise, followed=followed)
