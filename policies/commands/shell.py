"""A parser for POSIX shell and bash: a script's text in, a small syntax tree out, without expansion.

An admission webhook reads text that anyone may send, so the parser is linear in the text and bounded in
depth: it reads each character once (a `((` twice per level of nesting) and pays for it from the budget.
Broken syntax and nesting deeper than `MAX_DEPTH` raise `ShellError`, which contains the part before it.

designs/0003-a-shell-parser-of-our-own.md compares the parsers that were tried instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from policies.commands.model import StepBudget
from policies.commands.programs import DECLARING
from policies.commands.syntax import (
    Arithmetic,
    Assignment,
    Case,
    Command,
    Function,
    Group,
    If,
    Item,
    Literal,
    Loop,
    Part,
    Pipeline,
    Redirect,
    Redirected,
    Script,
    Simple,
    Substitution,
    Test,
    Variable,
    Word,
)

MAX_DEPTH = 32
"""Maximum nesting of substitutions, groups and compound commands."""


class ShellError(ValueError):
    """The text isn't shell, or is nested too deep. `partial` is the part before the error, `position` its
    end."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position
        self.partial = Script(())


_BLANKS = re.compile(r"[ \t\r]*(?:\\\n[ \t\r]*)*(?:#[^\n]*)?")
_PLAIN_WORD = re.compile(r"[^ \t\r\n\\'\"$`&|;()<>]+(?=[ \t\r\n;]|\Z)")
_PLAIN = re.compile(r"[^ \t\r\n\\'\"$`&|;()<>]+")
_DOUBLE_PLAIN = re.compile(r"[^\"\\$`]+")
_BRACED_PLAIN = re.compile(r"[^}\\'\"$`]+")
_BODY_PLAIN = re.compile(r"[^\\$`]+")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SPECIAL = re.compile(r"[0-9@*#?$!-]")
_BRACE_HEAD = re.compile(r"([#!]?)([A-Za-z_]\w*|\d+|[@*?$!#-])(\[[^\]}]{0,80}\])?", re.ASCII)
_BRACE_OPERATOR = re.compile(r":?[-=?+]|##?|%%?|//?|\^\^?|,,?|:|@|\[")
_PARENTHESIS = re.compile(r"[()]")
_ANSI_C = re.compile(r"[^\\']*(?:\\.[^\\']*)*", re.DOTALL)
_ANSI_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|.)", re.DOTALL)
_ANSI_VALUES = {"n": "\n", "t": "\t", "r": "\r"}
_ESCAPED_IN_BACKTICKS = re.compile(r"\\([$`\\])")
_BACKTICKS = re.compile(r"[^`\\]*(?:\\.[^`\\]*)*", re.DOTALL)
_REDIRECT = re.compile(r"(?:\d+|\{\w+\})?(<<<|<<-|<<|<>|<&|>>|>&|>\||<(?!\()|>(?!\())|(&>>|&>)")
_REDIRECTING = frozenset("<>&{0123456789")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]\s]{0,80}\])?\+?=", re.ASCII)
_FUNCTION = re.compile(r"([^ \t\r\n\\'\"$`&|;()<>]+)[ \t]*\([ \t]*\)")
_RESERVED = re.compile(
    r"(?:if|then|elif|else|fi|do|done|case|esac|while|until|for|select|function|time|in|!|\{|\}|\[\[)"
    r"(?=[\s;&|()<>]|\\\n|\Z)"
)
_LIST_ENDS = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}"})
_TIME_FLAG = re.compile(r"-p(?=\s)")
_TEST_END = re.compile(r"\]\](?=[\s;&|()<>]|\Z)")
_TEST_OPERATOR = re.compile(r"&&|\|\||[()<>&|;]|\n")


def parse(text: str, budget: StepBudget, depth: int = 0) -> Script:
    """The syntax tree of `text`, which is itself `depth` levels deep. Raises ShellError, BudgetSpent."""
    parser = _Parser(text, budget, depth)
    try:
        parser.script(parser.top)
        if parser.at < len(text):
            raise parser.error(f"unexpected {text[parser.at]!r}")
    except ShellError as error:
        error.partial = Script(tuple(parser.top))
        error.position = parser.read
        raise
    return Script(tuple(parser.top))


class _Parser:
    """A cursor over a script's text."""

    def __init__(self, text: str, budget: StepBudget, depth: int) -> None:
        budget.scan(len(text))
        self.text = text
        self.budget = budget
        self.depth = depth
        self.at = 0
        self.pending: list[tuple[Redirect, str, bool, bool]] = []
        """Here-documents whose bodies come next: redirect, delimiter, strip tabs, expand."""
        self.top: list[Item] = []
        self.read = 0
        """The end of the last complete item of the top list."""

    def reserved(self) -> str:
        """The reserved word that begins here; empty if there is none."""
        found = _RESERVED.match(self.text, self.at)
        return found[0] if found else ""

    def expect(self, closer: str) -> None:
        self.newlines()
        if closer != ")" and self.reserved() != closer:
            raise self.error(f"expected `{closer}`")
        if not self.take(closer):
            raise self.error(f"expected `{closer}`")

    # Lists and pipelines

    def script(self, items: list[Item] | None = None) -> Script:
        items = [] if items is None else items
        operator = ""
        while True:
            self.budget.spend(2)
            self.newlines()
            if self._at_list_end():
                if operator in ("&&", "||"):
                    raise self.error(f"nothing follows `{operator}`")
                return Script(tuple(items))
            pipeline = self._pipeline()
            self.blank()
            if self.take("&&") or self.take("||"):
                items.append(Item(pipeline, operator))
                operator = self.text[self.at - 2 : self.at]
                continue
            background = self.take("&")
            items.append(Item(pipeline, operator, background))
            if items is self.top:
                self.read = self.at
            operator = ";"
            separated = background or (not (self.sees(";;") or self.sees(";&")) and self.take(";"))
            if not separated and not self.sees("\n") and not self._at_list_end():
                raise self.error(f"unexpected {self.text[self.at]!r}")

    def _at_list_end(self) -> bool:
        if self.at >= len(self.text) or self.sees(")") or self.sees(";;") or self.sees(";&"):
            return True
        return self.reserved() in _LIST_ENDS

    def _pipeline(self) -> Pipeline:
        while (word := self.reserved()) in ("!", "time"):
            self.take(word)
            self.blank()
            if word == "time" and self.match(_TIME_FLAG):
                self.blank()
        commands = [self._command()]
        while True:
            self.blank()
            if self.sees("||") or not (self.take("|&") or self.take("|")):
                return Pipeline(tuple(commands))
            self.newlines()
            commands.append(self._command())

    # Commands

    def _command(self) -> Command:
        self.budget.spend(2)
        if self.sees("((") and (inside := self.arithmetic()) is not None:
            return self._redirected(Test((Word((Arithmetic(inside),)),)))
        opener = "(" if self.sees("(") else self.reserved()
        compound = _COMPOUND.get(opener)
        if compound is None:
            if function := self.match(_FUNCTION):
                return self._function_body(function[1])
            return self._simple()
        self.take(opener)
        self.deeper()
        command = compound(self)
        self.depth -= 1
        return self._redirected(command)

    def _redirected(self, command: Command) -> Command:
        redirects: list[Redirect] = []
        self.blank()
        while self._redirect(redirects):
            self.blank()
        return Redirected(command, tuple(redirects)) if redirects else command

    def _redirect(self, redirects: list[Redirect]) -> bool:
        if self.text[self.at : self.at + 1] not in _REDIRECTING:
            return False
        found = self.match(_REDIRECT)
        if found is None:
            return False
        self.budget.spend(2)
        self.blank()
        target = self.word()
        if target is None:
            raise self.error(f"nothing follows `{found[0]}`")
        redirect = Redirect(found[1] or found[2], target)
        redirects.append(redirect)
        if redirect.operator in ("<<", "<<-"):
            self.heredoc(redirect, target)
        return True

    def _simple(self) -> Simple:
        assignments: list[Assignment] = []
        words: list[Word] = []
        redirects: list[Redirect] = []
        start = self.at
        while True:
            self.blank()
            if self._redirect(redirects):
                continue
            if not words and (found := self.match(_ASSIGNMENT)):
                assignments.append(Assignment(found[1], self._assigned()))
            elif (word := self.word()) is not None:
                words.append(word)
            elif words and words[0].literal in DECLARING and self.sees("("):
                self._assigned()  # `local list=(…)`: the array of a declaration
            else:
                break
        if self.at == start or not (assignments or words or redirects):
            unexpected = self.text[self.at : self.at + 1]
            raise self.error(f"unexpected {unexpected!r}" if unexpected else "the text ends in mid-command")
        return Simple(tuple(assignments), tuple(words), tuple(redirects))

    def _assigned(self) -> Word:
        if not self.take("("):
            return self.word() or Word(())
        self.newlines()
        while not self.take(")"):
            if self.word() is None:
                raise self.error("an array is not closed")
            self.newlines()
        return Word(())

    def _subshell(self) -> Group:
        body = self.script()
        self.expect(")")
        return Group(body, subshell=True)

    def _braces(self) -> Group:
        body = self.script()
        self.expect("}")
        return Group(body, subshell=False)

    def _if(self) -> If:
        branches: list[tuple[Script, Script]] = []
        otherwise: Script | None = None
        while True:
            condition = self.script()
            self.expect("then")
            branches.append((condition, self.script()))
            word = self.reserved()
            self.take(word)
            if word == "else":
                otherwise = self.script()
                self.expect("fi")
            elif word not in ("elif", "fi"):
                raise self.error("expected `fi`")
            if word != "elif":
                return If(tuple(branches), otherwise)

    def _conditional(self, keyword: str) -> Loop:
        condition = self.script()
        return Loop(keyword, condition, self._do())

    def _for(self) -> Loop:
        self.blank()
        if self.sees("(("):
            head = self.arithmetic()
            self.blank()
            self.take(";")
            return Loop("for", None, self._do(), head=head or "")
        name = self.word()
        if name is None or name.literal is None:
            raise self.error("`for` names no variable")
        words: list[Word] | None = None
        self.newlines()
        if self.reserved() == "in":
            self.take("in")
            words = []
            self.blank()
            while (word := self.word()) is not None:
                words.append(word)
                self.blank()
        self.take(";")
        return Loop("for", None, self._do(), name.literal, None if words is None else tuple(words))

    def _do(self) -> Script:
        self.newlines()
        if self.sees("{"):
            self.expect("{")
            body = self.script()
            self.expect("}")
            return body
        self.expect("do")
        body = self.script()
        self.expect("done")
        return body

    def _case(self) -> Case:
        self.blank()
        subject = self.word()
        if subject is None:
            raise self.error("`case` has no word")
        self.expect("in")
        arms: list[Script] = []
        while True:
            self.newlines()
            if self.reserved() == "esac":
                self.take("esac")
                return Case(subject, tuple(arms))
            self.take("(")
            self.blank()
            while self.word() is not None or self.take("|"):
                self.blank()
            self.expect(")")
            arms.append(self.script())
            if not (self.take(";;&") or self.take(";;") or self.take(";&")) and self.reserved() != "esac":
                raise self.error("expected `;;`")

    def _named_function(self) -> Command:
        self.blank()
        name = self.word()
        if name is None or name.literal is None:
            raise self.error("`function` has no name")
        self.blank()
        if self.take("("):
            self.expect(")")
        return self._function_body(name.literal)

    def _function_body(self, name: str) -> Function:
        self.newlines()
        self.deeper()
        body = self._command()
        self.depth -= 1
        return Function(name, body)

    def _test(self) -> Test:
        words: list[Word] = []
        while True:
            self.blank()
            if self.match(_TEST_END):
                return Test(tuple(words))
            if operator := self.match(_TEST_OPERATOR):
                words.append(Word((Literal(operator[0]),)))
            elif (word := self.word()) is not None:
                words.append(word)
            else:
                raise self.error("`[[` is not closed")

    # The cursor

    def error(self, message: str) -> ShellError:
        return ShellError(message, self.at)

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"nested deeper than {MAX_DEPTH} levels")

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def matched(self, pattern: re.Pattern[str]) -> str:
        found = self.match(pattern)
        return found[0] if found else ""

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
            self.match(_BLANKS)

    def newlines(self) -> None:
        """Skip blanks, comments and line ends; read the here-documents after a line end."""
        self.blank()
        while self.take("\n"):
            self.budget.spend(1)
            self._read_heredocs()
            self.blank()

    def word(self) -> Word | None:
        """The word that begins here; None at an operator, a blank or the end."""
        self.budget.spend(1)
        start = self.at
        if found := _PLAIN_WORD.match(self.text, start):  # most words have no expansion
            self.at = found.end()
            return Word((Literal(found[0]),))
        parts: list[Part] = []
        while self.at < len(self.text):
            self.budget.spend(1)
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
            self.budget.spend(1)
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
        self.budget.spend(1)
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
        inside = self.matched(_BACKTICKS)
        if not self.take("`"):
            raise self.error("a backtick is not closed")
        if quoted:
            inside = inside.replace('\\"', '"')
        self.deeper()
        script = parse(_ESCAPED_IN_BACKTICKS.sub(r"\1", inside), self.budget, self.depth)
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
            self.budget.spend(1)
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
        inside = self.matched(_ANSI_C)
        if not self.take("'"):
            raise self.error("a single quote is not closed")
        self.budget.spend(inside.count("\\"))
        return Literal(_ANSI_ESCAPE.sub(_ansi_value, inside), quoted=True)

    def arithmetic(self) -> str | None:
        """The text of the `((…))` that begins here; None if it is a subshell in a subshell."""
        depth = 0
        for found in _PARENTHESIS.finditer(self.text, self.at):
            self.budget.spend(1)
            depth += 1 if found[0] == "(" else -1
            if depth == 1 and found[0] == ")":
                end = found.start()
                if not self.text.startswith("))", end):
                    return None
                inside = self.text[self.at + 2 : end]
                self.budget.scan(len(inside))
                self.at = end + 2
                return inside
        raise self.error("`((` is not closed")

    # Here-documents

    def heredoc(self, redirect: Redirect, delimiter: Word) -> None:
        """Remember a here-document, whose body comes after the line's end."""
        text = "".join(part.text for part in delimiter.parts if isinstance(part, Literal))
        quoted = any(isinstance(part, Literal) and part.quoted for part in delimiter.parts)
        self.pending.append((redirect, text, redirect.operator == "<<-", not quoted))

    def _read_heredocs(self) -> None:
        pending, self.pending = self.pending, []
        for redirect, delimiter, strip, expand in pending:
            body: list[str] = []
            while self.at < len(self.text):
                self.budget.spend(1)
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
            if expand:
                redirect.target = _Parser(text, self.budget, self.depth).body_word()
            else:
                redirect.target = Word((Literal(text, quoted=True),))

    def body_word(self) -> Word:
        """The text as the body of a here-document."""
        parts: list[Part] = []
        while self.at < len(self.text):
            self.budget.spend(1)
            if plain := self.match(_BODY_PLAIN):
                parts.append(Literal(plain[0], quoted=True))
            elif self.sees("\\"):
                parts.append(self._escape("$`\\"))
            else:
                parts.append(self._expansion(quoted=True))
        return Word(tuple(parts))


_COMPOUND: dict[str, Callable[[_Parser], Command]] = {
    "(": _Parser._subshell,
    "{": _Parser._braces,
    "if": _Parser._if,
    "while": lambda parser: parser._conditional("while"),
    "until": lambda parser: parser._conditional("until"),
    "for": _Parser._for,
    "select": _Parser._for,
    "case": _Parser._case,
    "function": _Parser._named_function,
    "[[": _Parser._test,
}


def _ansi_value(found: re.Match[str]) -> str:
    escape = found[1]
    if escape[0] == "x" and len(escape) > 1:
        return chr(int(escape[1:], 16))
    return _ANSI_VALUES.get(escape, escape)
