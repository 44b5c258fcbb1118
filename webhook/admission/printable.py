"""Escaping text of users for a terminal, a log or a page.

A name in a file or a custom resource may contain any character. Control characters move the cursor,
bidirectional controls reorder text, line separators begin lines, and some words are commands to the CI system
that reads the log. Each such character becomes an escape: `\\x1b`, `\\u202e`.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_KEPT: Final = "\t\u200c\u200d"
"""Tabs, and the joiners that scripts and emoji are written with."""
_CI_COMMAND: Final = re.compile(r"##((?:vso|teamcity)?\[)")
"""GitHub reads `##[name]` anywhere in a line, Azure Pipelines `##vso[name]`, TeamCity `##teamcity[name]`."""
_NOT_ASCII_TEXT: Final = re.compile(r"[^\t\x20-\x7e]")
_RAW_IN_JSON: Final = re.compile(r"[^\n\x20-\x7e]")


def printable(text: str) -> str:
    """The text as one line without control characters and CI commands."""
    if not (text.isascii() and text.isprintable()):
        text = _NOT_ASCII_TEXT.sub(_escaped, text)
    if "##" in text:
        text = _CI_COMMAND.sub(r"\\x23#\1", text)
    return _without_command(text) if "::" in text else text


def _without_command(line: str) -> str:
    """GitHub reads `::name::` at the beginning of a line, spaces ignored."""
    command = line.lstrip()
    if not command.startswith("::") or "::" not in command[2:]:
        return line
    return f"{line[: -len(command)]}\\x3a{command[1:]}"


def printable_lines(text: str) -> str:
    """The same for each line of a text."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(rendered: str) -> str:
    """The same for JSON, with JSON's escapes."""
    return _CI_COMMAND.sub(r"\\u0023#\1", _RAW_IN_JSON.sub(_escaped_in_json, rendered))


def _is_control(character: str) -> bool:
    """Whether a character is a control character or cannot be printed."""
    if character.isprintable() or character in _KEPT:
        return False
    return unicodedata.category(character) != "Zs"  # the spaces of other scripts


def _escaped(found: re.Match[str]) -> str:
    """The character as an escape of Python and YAML."""
    if not _is_control(found[0]):
        return found[0]
    code = ord(found[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escaped_in_json(found: re.Match[str]) -> str:
    if not _is_control(found[0]):
        return found[0]
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
