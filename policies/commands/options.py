"""Taking a program's options apart from its operands, by a table of the options that take a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum


class Style(Enum):
    """How a program writes its options."""

    GNU = "gnu"
    """`-ab`, `-a value`, `-avalue`, `--long value`, `--long=value`."""
    GO = "go"
    """One dash or two before whole words: `-addr=value`, `-connect value`."""


@dataclass(frozen=True, slots=True)
class OptionSyntax:
    """Which options of a program take a value, and which are known to take none.

    An operand right after an option of neither kind may be that option's value: it is marked doubtful.
    Short options without a value need not be listed.
    """

    valued: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    attached: frozenset[str] = frozenset()
    """Short options whose optional value can only be attached: mysql's `-psecret`."""
    style: Style = Style.GNU
    stop_at_operand: bool = False
    """The words after the first operand belong to another program (`timeout 5 curl …`)."""


def valued(options: str, style: Style = Style.GNU, *, stop_at_operand: bool = False) -> OptionSyntax:
    """The syntax of a program of which only the options with a value, separated by blanks, are known."""
    return OptionSyntax(frozenset(options.split()), style=style, stop_at_operand=stop_at_operand)


@dataclass(slots=True)
class Parsed:
    """Options in order as (option, value), value empty for flags; operands; which of these are doubtful."""

    options: list[tuple[str, str]] = field(default_factory=list)
    operands: list[str] = field(default_factory=list)
    doubtful: set[int] = field(default_factory=set)
    rest: int = 0
    """Index in the arguments of the first one that was not read (with `stop_at_operand`)."""

    def values(self, names: Sequence[str]) -> list[str]:
        """The values given to any of the options `names`, in order."""
        return [value for option, value in self.options if option in names]

    def value(self, names: Sequence[str], default: str = "") -> str:
        """The last value given to any of the options `names`."""
        found = self.values(names)
        return found[-1] if found else default

    def has(self, *names: str) -> bool:
        return any(option in names for option, _ in self.options)


def parse_options(arguments: Sequence[str], syntax: OptionSyntax) -> Parsed:
    """Read `arguments` (argv without the program) by `syntax`. Linear; never raises."""
    parsed = Parsed()
    doubt = False
    at = 0
    while at < len(arguments):
        word = arguments[at]
        at += 1
        if word == "--":
            if syntax.stop_at_operand:
                parsed.rest = at
                return parsed
            parsed.operands.extend(arguments[at:])
            break
        if len(word) < 2 or word[0] != "-":
            if syntax.stop_at_operand:
                parsed.rest = at - 1
                return parsed
            if doubt:
                parsed.doubtful.add(len(parsed.operands))
            parsed.operands.append(word)
            doubt = False
            continue
        if word.startswith("--") or syntax.style is Style.GO:
            taken, doubt = _long(parsed, syntax, word, arguments, at)
        else:
            taken, doubt = _short(parsed, syntax, word, arguments, at), False
        at += taken
    parsed.rest = len(arguments)
    return parsed


def _long(
    parsed: Parsed, syntax: OptionSyntax, word: str, arguments: Sequence[str], at: int
) -> tuple[int, bool]:
    name, equals, value = word.partition("=")
    if syntax.style is Style.GO:
        name = "-" + name.lstrip("-")
    if equals:
        parsed.options.append((name, value))
        return 0, False
    if name in syntax.valued and at < len(arguments):
        parsed.options.append((name, arguments[at]))
        return 1, False
    parsed.options.append((name, ""))
    return 0, name not in syntax.flags and name not in syntax.valued


def _short(parsed: Parsed, syntax: OptionSyntax, word: str, arguments: Sequence[str], at: int) -> int:
    for index in range(1, len(word)):
        option = "-" + word[index]
        if option in syntax.attached:
            parsed.options.append((option, word[index + 1 :]))
            return 0
        if option in syntax.valued:
            if index + 1 < len(word):
                parsed.options.append((option, word[index + 1 :].removeprefix("=")))
                return 0
            if at < len(arguments):
                parsed.options.append((option, arguments[at]))
                return 1
        parsed.options.append((option, ""))
    return 0
