"""The programs of a script whose exit codes do not reach whoever runs it.

A pipeline has the exit code of its last command, and a script without `set -e` that of its last list:
https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html#tag_19_09_02
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from policies.commands.model import BudgetSpent, StepBudget
from policies.commands.programs import SHELLS, shell_operands
from policies.commands.shell import ShellError, parse
from policies.commands.syntax import Command, Item, Literal, Redirected, Script, Simple, Word
from policies.commands.wrappers import unwrap

_HANDLED: Final = re.compile(r"\$\?|PIPESTATUS|\b(?:trap|wait|mkfifo)\b|set \+")
"""Signs of a script that looks at exit codes itself."""
_ERREXIT: Final = re.compile(r"-[a-df-zA-Z]*e[a-zA-Z]*|errexit")
_PASSES: Final = frozenset({"true", ":", "echo", "printf", "sleep", "date"})
"""Programs that succeed in any case."""
_CHECKS: Final = frozenset({"test", "[", "grep", "exit", "return", "false", "kill"})
"""Programs by which a script may fail for another reason than its own work."""


class Unseen(Struct, frozen=True):
    """A program, and what hides its exit code."""

    words: tuple[str, ...]
    by: str
    """The program behind it in a pipe, or the words with which the script passes."""
    in_pipe: bool


def unseen(argv: Sequence[str]) -> Iterator[Unseen]:
    """The programs of `sh -c` whose failure certainly does not fail the script. Yields nothing if the script
    cannot be read, or may handle exit codes itself."""
    if not argv or argv[0].rpartition("/")[2] not in SHELLS:
        return
    has_script, operands = shell_operands(argv[1:])
    if not has_script or not operands or _HANDLED.search(operands[0]):
        return
    try:
        script = parse(operands[0], StepBudget())
    except (ShellError, BudgetSpent):
        return
    options = list(argv[1 : argv.index(operands[0])])
    yield from _of_script(script, options)


def _of_script(script: Script, options: list[str]) -> Iterator[Unseen]:
    for at, item in enumerate(script.items):
        commands = [_words(each) for each in item.pipeline.commands]
        if commands[0][:1] == ["set"]:
            options += commands[0][1:]
        after = script.items[at + 1 :]
        if item.background or not all(map(_is_harmless, after)):
            continue
        if "pipefail" not in " ".join(options):
            for words, following in pairwise(commands):
                if words and following:
                    yield Unseen(tuple(words), following[0], in_pipe=True)
        own = commands[-1] and commands[-1][0] not in _CHECKS
        if own and (by := _passing(after, stops=any(map(_ERREXIT.fullmatch, options)))):
            yield Unseen(tuple(commands[-1]), by, in_pipe=False)


def _is_harmless(item: Item) -> bool:
    """Whether an item does its own work, and does not check that of others."""
    if not all(isinstance(each, Simple | Redirected) for each in item.pipeline.commands):
        return False
    words = _words(item.pipeline.commands[-1])
    return bool(words) and (words == ["exit", "0"] or words[0] not in _CHECKS)


def _passing(after: Sequence[Item], *, stops: bool) -> str:
    """The words that let a script pass after a failure of the item before; empty if they don't.
    `stops`: a failure ends the script."""
    if not after:
        return ""
    last, words = after[-1], _words(after[-1].pipeline.commands[-1])
    text = " ".join(words)
    passes = len(last.pipeline.commands) == 1 and (text == "exit 0" or words[0] in _PASSES)
    if not passes:
        return ""
    if last.operator == "||":
        return f"|| {words[0]}" if len(after) == 1 else ""
    own_list_ended = after[0].operator not in ("&&", "||")
    return text if last.operator != "&&" and own_list_ended and not stops else ""


def _words(command: Command) -> list[str]:
    """The words of a simple command without its wrappers; empty for others."""
    if isinstance(command, Redirected):
        return _words(command.command)
    return unwrap(list(map(_text, command.words))).words if isinstance(command, Simple) else []


def _text(word: Word) -> str:
    return "".join(part.text if isinstance(part, Literal) else "$" for part in word.parts)
