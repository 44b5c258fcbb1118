"""Which programs a shell starts as its children for certain: where it cannot make way for them.

dash 0.5.12, bash 5.2 and busybox ash 1.35 were tried with 46 forms of script as the first process of a
container. None of them makes way for a command that another one follows, in a pipeline, in the background
or in a loop. They differ for the last command of a script, which is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from policies.commands.budget import Budget, BudgetSpent
from policies.commands.programs import SHELLS, shell_operands
from policies.commands.shell import ShellError, parse
from policies.commands.syntax import Case, Command, Group, If, Loop, Redirected, Script, Simple

_HANDLING: Final = ("trap", "exec", "kill", "tini", "dumb-init", "catatonit", "supervisord")
"""Words by which a script may see to it that its children end."""


def children(argv: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The words of each program that the shell in `argv` starts as a child and waits for.

    None if `argv` is no shell with a script, or the script may handle signals or cannot be read."""
    script = _script(argv)
    if script is None or any(word in script for word in _HANDLING):
        return
    try:
        tree = parse(script, Budget())
    except (ShellError, BudgetSpent):
        return
    for command in _awaited(tree, followed=False):
        words = tuple(word.literal or "$" for word in command.words)
        if words:
            yield words


def _script(argv: Sequence[str]) -> str | None:
    """The text that a shell gets with `-c`."""
    if not argv or argv[0].rpartition("/")[2] not in SHELLS:
        return None
    given, operands = shell_operands(argv[1:])
    return operands[0] if given and operands else None


def _awaited(script: Script, *, followed: bool) -> Iterator[Simple]:
    for n, item in enumerate(script.items):
        commands = item.pipeline.commands
        more = followed or item.background or n + 1 < len(script.items) or len(commands) > 1
        for command in commands:
            yield from _within(command, followed=more)


def _within(command: Command, *, followed: bool) -> Iterator[Simple]:
    match command:
        case Simple():
            if followed:
                yield command
        case Redirected():
            yield from _within(command.command, followed=followed)
        case Group():
            yield from _awaited(command.body, followed=followed)
        case Loop():
            yield from _awaited(command.body, followed=True)
        case Case():
            for arm in command.arms:
                yield from _awaited(arm, followed=followed)
        case If():
            for _, body in command.branches:
                yield from _awaited(body, followed=followed)
            if command.otherwise is not None:
                yield from _awaited(command.otherwise, followed=followed)
