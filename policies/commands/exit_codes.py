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
from policies.commands.programs import ACTIVATES, DECLARING, DOWNLOADERS, SHELLS, shell_operands
from policies.commands.shell import ShellError, parse
from policies.commands.syntax import Command, Item, Literal, Redirected, Script, Simple, Word
from policies.commands.wrappers import unwrap

_HANDLED: Final = re.compile(
    r"\$\?|pipestatus|\b(?:trap|wait|mkfifo|eval|shellopts)\b|set \+|set [\"']?\$|(?<!\S)!\s",
    re.IGNORECASE,
)
"""Signs of a script that looks at exit codes itself, or gets its options from elsewhere."""
_READS: Final = re.compile(r"(?:^|[\s;&({])(?:\.|source) ([^\s;&|)]+)")
"""A file with options or functions."""
_PIPEFAIL: Final = re.compile(r"pipe_?fail", re.IGNORECASE)
"""Wherever it is: in a branch, a function, or as an option of `shopt`."""
_ERREXIT: Final = re.compile(r"-[a-df-zA-Z]*e[a-zA-Z]*|err_?exit|ERR_?EXIT")
_SET: Final = re.compile(r"\bset ([^\n;&|]*)")
_PASSES: Final = frozenset({"true", ":", "echo", "printf", "sleep", "date"})
"""Programs that succeed in any case."""
_CHECKS: Final = frozenset({"test", "[", "grep", "exit", "return", "false", "kill"})
"""Programs by which a script may fail for another reason than its own work."""
_TIDIES: Final = frozenset(
    {"cd", "chmod", "chown", "du", "find", "mkdir", "rm", "set", "sync", "touch", "umask"}
)
"""Programs that succeed whatever a file contains, and don't look for a result."""
_MOVES: Final = DOWNLOADERS | {
    "az",
    "cp",
    "curl",
    "gcloud",
    "ln",
    "ls",
    "mv",
    "rclone",
    "rsync",
    "s3cmd",
    "scp",
}
"""Programs that succeed if a file exists, whatever it contains."""
_TAKES_ALL: Final = (
    _MOVES
    | {
        "age",
        "base64",
        "bzip2",
        "cat",
        "cut",
        "dd",
        "gpg",
        "gzip",
        "head",
        "logger",
        "lz4",
        "lzop",
        "mbuffer",
    }
    | {"mysql", "openssl", "pigz", "psql", "pv", "rotatelogs", "sed", "sha256sum", "sort", "split", "ssh"}
    | {"tail", "tee", "tr", "ts", "uniq", "wc", "xz", "zip", "zstd"}
)
"""Programs that succeed with the input that they got, also with none."""


_MOST: Final = 32
"""Items at the end of a script that are read, each with all after it."""


class Unseen(Struct, frozen=True):
    """A program, and what hides its exit code."""

    words: tuple[str, ...]
    by: str
    """The program behind it in a pipe, or the words with which the script passes."""
    in_pipe: bool


def shows_failures(options: Sequence[str]) -> bool:
    """Whether options of a shell or of `set` let a script fail with its commands or pipelines."""
    return any(_ERREXIT.fullmatch(each) or _PIPEFAIL.search(each) for each in options)


def unseen(argv: Sequence[str]) -> Iterator[Unseen]:
    """The programs of `sh -c` whose failure certainly does not fail the script. Yields nothing if the script
    cannot be read, or may handle exit codes itself."""
    if not argv or argv[0].rpartition("/")[2] not in SHELLS:
        return
    has_script, operands = shell_operands(argv[1:])
    text = "".join(operands[:1])
    if not has_script or not text or _HANDLED.search(text):
        return
    if not all(file.endswith(ACTIVATES) for file in _READS.findall(text)):
        return
    try:
        script = parse(text, StepBudget())
    except (ShellError, BudgetSpent):
        return
    options = argv[1 : argv.index(text)]
    set_inside = [word for words in _SET.findall(text) for word in words.split()]
    stops = any(map(_ERREXIT.fullmatch, (*options, *set_inside)))
    piped = not any(map(_PIPEFAIL.search, (*options, text)))
    yield from _of_script(script, piped=piped, stops=stops)


def _of_script(script: Script, *, piped: bool, stops: bool) -> Iterator[Unseen]:
    """`piped`: a pipeline hides exit codes. `stops`: a failure ends the script."""
    for at in range(max(0, len(script.items) - _MOST), len(script.items)):
        item = script.items[at]
        commands = [_words(each) for each in item.pipeline.commands]
        after = script.items[at + 1 :]
        if item.background or not all(map(_is_harmless, after)):
            continue
        last = item.pipeline.commands[-1]
        written = _written(last)
        if (
            piped
            and "".join(commands[-1][:1]) in _TAKES_ALL
            and all(_passes_on(each, written) for each in after)
        ):
            for words, following in pairwise(commands):
                if words and following:
                    yield Unseen(tuple(words), following[0], in_pipe=True)
        own = commands[-1] and commands[-1][0] not in _CHECKS
        if own and (by := _passing(after, stops=stops)):
            yield Unseen(tuple(commands[-1]), by, in_pipe=False)


def _is_harmless(item: Item) -> bool:
    """Whether an item does its own work, and does not check that of others."""
    if not all(isinstance(each, Simple | Redirected) for each in item.pipeline.commands):
        return False
    words = _words(item.pipeline.commands[-1])
    return bool(words) and (words == ["exit", "0"] or words[0] not in _CHECKS)


def _passes_on(item: Item, written: frozenset[str]) -> bool:
    """Whether an item succeeds whatever the files contain that a pipeline has written."""
    words = _words(item.pipeline.commands[-1])
    if words == ["exit", "0"] or words[0] in _PASSES | _TIDIES | DECLARING:
        return True
    return words[0] in _MOVES and not written.isdisjoint(words)


def _written(command: Command) -> frozenset[str]:
    """The files that the last command of a pipeline writes, as words."""
    redirects = command.redirects if isinstance(command, Simple | Redirected) else ()
    files = {_text(each.target) for each in redirects if each.operator in (">", ">>", ">|")}
    words = _words(command)
    return frozenset(files | set(words[1:] if words[:1] == ["tee"] else ()))


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
