"""Reading the words of a shell script: quotes, expansions, substitutions, here-documents.

The lower half of `shell`: it knows what a word is and nothing of commands.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from policies.commands.syntax import (
    Arithmetic,
    Literal,
    Part,
    Redirect,
    Script,
    Substitution,
    Variable,
    Word,
)

MAX_DEPTH = 32
"""Nesting of substitutions, groups and compound commands that is followed."""

MAX_PIECES = 10_000
"""Words and expansions of one text that are read. A probe has a dozen; the bound keeps hostile text cheap."""


class ShellError(ValueError):
    """The text isn't shell, or is nested too deep. `partial`: what was read before; `position`: its end."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position
        self.partial = Script(())


_BLANK = re.compile(r"(?:[ \t\r]+|\\\n)*(?:#[^\n]*)?")
_BARE_WORD = re.compile(r"[^ \t\r\n\\'\"$`&|;()<>]+(?=[ \t\r\n;]|\Z)")
_PLAIN = re.compile(r"[^ \t\r\n\\'\"$`&|;()<>]+")
_DOUBLE_PLAIN = re.compile(r"[^\"\\$`]+")
_BRACED_PLAIN = re.compile(r"[^}\\'\"$`]+")
_BODY_PLAIN = re.compile(r"[^\\$`]+")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SPECIAL = re.compile(r"[0-9@*#?$!-]")
_BRACE_HEAD = re.compile(r"([#!]?)([A-Za-z_]\w*|\d+|[@*?$!#-])(\[[^\]}]{0,80}\])?", re.ASCII)
_BRACE_OPERATOR = re.compile(r":?[-=?+]|##?|%%?|//?|\^\^?|,,?|:|@|\[")
_PARENTHESIS = re.compile(r"[()]")
_ANSI_C = re.compile(r"(?:[^\\']+|\\.)*", re.DOTALL)
_ANSI_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|.)", re.DOTALL)
_ANSI_VALUES = {"n": "\n", "t": "\t", "r": "\r"}
_ESCAPED_IN_BACKTICKS = re.compile(r"\\([$`\\])")
_BACKTICKS = re.compile(r"(?:[^`\\]+|\\.)*", re.DOTALL)


class WordReader(ABC):
    """A cursor over a script's text that reads blanks, words and here-documents."""

    def __init__(self, text: str, depth: int) -> None:
        self.text = text
        self.depth = depth
        self.at = 0
        self.pieces = 0
        self.pending: list[tuple[Redirect, str, bool, bool]] = []
        """Here-documents whose bodies follow: redirect, delimiter, strip tabs, expand."""

    @abstractmethod
    def script(self) -> Script:
        """The list of commands that begins here, up to what closes it."""

    @abstractmethod
    def nested(self, text: str) -> Script:
        """The list of commands that `text` is."""

    def error(self, message: str) -> ShellError:
        return ShellError(message, self.at)

    def count(self) -> None:
        self.pieces += 1
        if self.pieces > MAX_PIECES:
            raise self.error(f"more than {MAX_PIECES} words and expansions")

    def deeper(self) -> None:
        self.count()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"nested deeper than {MAX_DEPTH} levels")

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def sees(self, token: str) -> bool:
        return self.text.startswith(token, self.at)

    def take(self, token: str) -> bool:
        if self.text.startswith(token, self.at):
            self.at += len(token)
            return True
        return False

    def blank(self) -> None:
        """Skip blanks and a comment, on this line."""
        if self.at < len(self.text) and self.text[self.at] in " \t\r\\#":
            self.match(_BLANK)

    def newlines(self) -> None:
        """Skip blanks, comments and line ends; read the here-documents that begin after a line end."""
        self.blank()
        while self.take("\n"):
            self._read_heredocs()
            self.blank()

    def word(self) -> Word | None:
        """The word that begins here, or None at an operator, a blank or the end."""
        self.count()
        start = self.at
        if bare := _BARE_WORD.match(self.text, start):  # most words: nothing to expand
            self.at = bare.end()
            return Word((Literal(bare[0]),))
        parts: list[Part] = []
        while self.at < len(self.text):
            if plain := self.match(_PLAIN):
                parts.append(Literal(plain[0]))
            elif self.sees("<(") or self.sees(">("):
                self.at += 2
                parts.append(Substitution(self._until_parenthesis(), process=True))
            elif not self._quoted_or_expanded(parts):
                break
        return Word(tuple(parts)) if self.at > start else None

    def _quoted_or_expanded(self, parts: list[Part]) -> bool:
        match self.text[self.at]:
            case "\\":
                if not self.take("\\\n"):
                    parts.append(Literal(self.text[self.at + 1 : self.at + 2], quoted=True))
                    self.at += 2
            case "'":
                end = self.text.find("'", self.at + 1)
                if end < 0:
                    raise self.error("a single quote is not closed")
                parts.append(Literal(self.text[self.at + 1 : end], quoted=True))
                self.at = end + 1
            case '"':
                self._double_quoted(parts)
            case "$" | "`":
                parts.append(self._expansion(quoted=False))
            case _:
                return False
        return True

    def _double_quoted(self, parts: list[Part]) -> None:
        self.at += 1
        parts.append(Literal("", quoted=True))
        while not self.take('"'):
            if plain := self.match(_DOUBLE_PLAIN):
                parts.append(Literal(plain[0], quoted=True))
            elif self.at >= len(self.text):
                raise self.error("a double quote is not closed")
            elif self.sees("\\"):
                parts.append(self._escape('"$`\\'))
            else:
                parts.append(self._expansion(quoted=True))

    def _escape(self, special: str) -> Literal:
        following = self.text[self.at + 1 : self.at + 2]
        self.at += 2
        if following == "\n":
            return Literal("", quoted=True)
        return Literal(following if following and following in special else "\\" + following, quoted=True)

    # Expansions

    def _expansion(self, *, quoted: bool) -> Part:
        self.count()
        if self.take("`"):
            return self._backticks(quoted=quoted)
        self.at += 1
        if self.sees("((") and (inside := self.arithmetic()) is not None:
            return Arithmetic(inside)
        if self.take("("):
            return Substitution(self._until_parenthesis(), quoted)
        if self.take("{"):
            return self._braced(quoted=quoted)
        if name := self.match(_NAME) or self.match(_SPECIAL):
            return Variable(name[0], quoted=quoted)
        if not quoted and self.take("'"):
            return self._ansi_c()
        # `$"…"` is a translated string: the quotes are read as usual, the dollar sign vanishes.
        return Literal("" if not quoted and self.sees('"') else "$", quoted)

    def _until_parenthesis(self) -> Script:
        self.deeper()
        script = self.script()
        if not self.take(")"):
            raise self.error("a parenthesis is not closed")
        self.depth -= 1
        return script

    def _backticks(self, *, quoted: bool) -> Substitution:
        found = self.match(_BACKTICKS)
        inside = found[0] if found else ""
        if not self.take("`"):
            raise self.error("a backtick is not closed")
        if quoted:
            inside = inside.replace('\\"', '"')
        self.deeper()
        script = self.nested(_ESCAPED_IN_BACKTICKS.sub(r"\1", inside))
        self.depth -= 1
        return Substitution(script, quoted)

    def _braced(self, *, quoted: bool) -> Variable:
        head = self.match(_BRACE_HEAD)
        if head is None:
            raise self.error("`${` names no variable")
        prefix, name, index = head[1], head[2], head[3]
        if self.take("}"):
            return Variable(name, {"#": "len", "!": "!"}.get(prefix, "[" if index else ""), quoted=quoted)
        operator = self.match(_BRACE_OPERATOR)
        if operator is None:
            raise self.error("`${` has an unknown operator")
        self.deeper()
        parts: list[Part] = []
        while not self.take("}"):
            if plain := self.match(_BRACED_PLAIN):
                parts.append(Literal(plain[0], quoted))
            elif self.at >= len(self.text):
                raise self.error("`${` is not closed")
            elif quoted and self.sees("'"):
                parts.append(Literal("'", quoted))
                self.at += 1
            elif not self._quoted_or_expanded(parts):
                raise self.error("`${` is not closed")
        self.depth -= 1
        return Variable(name, "[" if index or prefix else operator[0], Word(tuple(parts)), quoted)

    def _ansi_c(self) -> Literal:
        found = self.match(_ANSI_C)
        inside = found[0] if found else ""
        if not self.take("'"):
            raise self.error("a single quote is not closed")
        return Literal(_ANSI_ESCAPE.sub(_ansi_value, inside), quoted=True)

    def arithmetic(self) -> str | None:
        """The text inside `((…))` that begins here, or None where it is a subshell in a subshell."""
        self.count()
        depth = 0
        for found in _PARENTHESIS.finditer(self.text, self.at):
            depth += 1 if found[0] == "(" else -1
            if depth == 1 and found[0] == ")":
                end = found.start()
                if not self.text.startswith("))", end):
                    return None
                inside = self.text[self.at + 2 : end]
                self.at = end + 2
                return inside
        raise self.error("`((` is not closed")

    # Here-documents

    def heredoc(self, redirect: Redirect, delimiter: Word) -> None:
        """Note a here-document, whose body follows the line's end."""
        text = "".join(part.text for part in delimiter.parts if isinstance(part, Literal))
        quoted = any(isinstance(part, Literal) and part.quoted for part in delimiter.parts)
        self.pending.append((redirect, text, redirect.operator == "<<-", not quoted))

    def _read_heredocs(self) -> None:
        pending, self.pending = self.pending, []
        for redirect, delimiter, strip, expand in pending:
            body: list[str] = []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                line = line.lstrip("\t") if strip else line
                self.at = end + 1
                if line == delimiter:
                    break
                body.append(line)
            self.at = min(self.at, len(self.text))
            text = "\n".join(body)
            redirect.target = self.body(text) if expand else Word((Literal(text, quoted=True),))

    @abstractmethod
    def body(self, text: str) -> Word:
        """The word that a here-document's `text` is, its expansions read."""

    def body_word(self) -> Word:
        """The whole text as the body of a here-document."""
        parts: list[Part] = []
        while self.at < len(self.text):
            if plain := self.match(_BODY_PLAIN):
                parts.append(Literal(plain[0], quoted=True))
            elif self.sees("\\"):
                parts.append(self._escape("$`\\"))
            else:
                parts.append(self._expansion(quoted=True))
        return Word(tuple(parts))


def _ansi_value(found: re.Match[str]) -> str:
    escape = found[1]
    if escape[0] == "x" and len(escape) > 1:
        return chr(int(escape[1:], 16))
    return _ANSI_VALUES.get(escape, escape)
