"""The options and operands of a program, by a table of the options that take a value."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum

from msgspec import Struct, field


class Style(Enum):
    """How a program writes its options."""

    GNU = "gnu"
    """`-ab`, `-a value`, `-avalue`, `--long value`, `--long=value`."""
    GO = "go"
    """One dash or two before whole words: `-addr=value`, `-connect value`."""


class OptionSyntax(Struct, frozen=True):
    """Which options of a program take a value (`valued`), and which take none (`flags`).

    An operand after an unknown long option may be the value of that option: it is ambiguous. Short options
    without a value need not be listed.
    """

    valued: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    attached: frozenset[str] = frozenset()
    """Short options whose optional value can only be attached: mysql's `-psecret`."""
    style: Style = Style.GNU
    stop_at_operand: bool = False
    """The words from the first operand on belong to another program (`timeout 5 curl …`)."""


def valued(options: str, style: Style = Style.GNU, *, stop_at_operand: bool = False) -> OptionSyntax:
    """The syntax of a program with these options with a value, separated by blanks."""
    return OptionSyntax(frozenset(options.split()), style=style, stop_at_operand=stop_at_operand)


class Parsed(Struct):
    options: list[tuple[str, str]] = field(default_factory=list)
    """In order, with their values; a flag's is empty."""
    operands: list[str] = field(default_factory=list)
    ambiguous: set[int] = field(default_factory=set)
    """Indices of operands that may be the value of an unknown option."""
    rest: int = 0
    """Index of the first argument that was not read (with `stop_at_operand`)."""

    def values(self, names: Collection[str]) -> list[str]:
        """The values of the options `names`, in order."""
        return [value for option, value in self.options if option in names]

    def value(self, names: Collection[str]) -> str:
        """The last value of the options `names`; empty without any."""
        found = self.values(names)
        return found[-1] if found else ""

    def has(self, *names: str) -> bool:
        return any(option in names for option, _ in self.options)


def parse_options(arguments: Sequence[str], syntax: OptionSyntax) -> Parsed:
    """Parse argv without the program. Linear; never raises."""
    parsed = Parsed()
    after_unknown = False
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
            if after_unknown:
                parsed.ambiguous.add(len(parsed.operands))
            parsed.operands.append(word)
            after_unknown = False
            continue
        if word.startswith("--") or syntax.style is Style.GO:
            taken, after_unknown = _long(parsed, syntax, word, arguments, at)
        else:
            taken, after_unknown = _short(parsed, syntax, word, arguments, at), False
        at += taken
    parsed.rest = len(arguments)
    return parsed


def _long(
    parsed: Parsed, syntax: OptionSyntax, word: str, arguments: Sequence[str], at: int
) -> tuple[int, bool]:
    """Returns how many arguments the option takes, and whether it is unknown."""
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
    """Returns how many arguments the options take."""
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
