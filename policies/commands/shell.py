r"""A POSIX shell parser, with what bash adds: a script's text in, a small syntax tree out. No expansion here.

Why our own. Three parsers were tried on hostile text. `tree-sitter-bash` 0.25 takes 18 s for 64 KiB of
`()`, far from linear; it also never says "this is no shell" but guesses
commands out of broken text. `bashlex` is GPL, knows no `case`, and answers 300 nested `$(` with a
RecursionError. `shlex` knows no substitutions, here-documents or reserved words. An admission webhook
reads text that anyone may send, so the parser must first of all be linear in it and bounded in depth.

Its law: one pass, each character read once (a `((` twice per level of nesting, and the levels are
bounded); nesting deeper than `MAX_DEPTH` and broken syntax end the parse with `ShellError`, which carries
what was read so far.
"""

from __future__ import annotations

import re
from collections.abc import Callable

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
    Pipeline,
    Redirect,
    Redirected,
    Script,
    Simple,
    Test,
    Word,
)
from policies.commands.words import MAX_DEPTH, ShellError, WordReader

__all__ = ["MAX_DEPTH", "ShellError", "parse"]

_REDIRECT = re.compile(r"(?:\d+|\{\w+\})?(<<<|<<-|<<|<>|<&|>>|>&|>\||<(?!\()|>(?!\())|(&>>|&>)")
_REDIRECTING = frozenset("<>&{0123456789")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]\s]{0,80}\])?\+?=", re.ASCII)
_FUNCTION = re.compile(r"([^ \t\r\n\\'\"$`&|;()<>]+)[ \t]*\([ \t]*\)")
_RESERVED = re.compile(
    r"(?:if|then|elif|else|fi|do|done|case|esac|while|until|for|select|function|time|in|!|\{|\}|\[\[)"
    r"(?=[\s;&|()<>]|\\\n|\Z)"
)
_CLOSERS = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}"})
_TIME_FLAG = re.compile(r"-p(?=\s)")
_TEST_END = re.compile(r"\]\](?=[\s;&|()<>]|\Z)")
_TEST_OPERATOR = re.compile(r"&&|\|\||[()<>&|;]|\n")


def parse(text: str, depth: int = 0) -> Script:
    """The syntax tree of `text`. `depth`: how deep the text itself is nested already.

    Raises ShellError for broken syntax and for nesting beyond `MAX_DEPTH`.
    """
    parser = _Parser(text, depth)
    try:
        parser.script(parser.top)
        if parser.at < len(text):
            raise parser.error(f"unexpected {text[parser.at]!r}")
    except ShellError as error:
        error.partial = Script(tuple(parser.top))
        error.position = parser.read
        raise
    return Script(tuple(parser.top))


class _Parser(WordReader):
    def __init__(self, text: str, depth: int) -> None:
        super().__init__(text, depth)
        self.top: list[Item] = []
        self.read = 0
        """Where the last complete item of the top list ends."""

    def nested(self, text: str) -> Script:
        return parse(text, self.depth)

    def body(self, text: str) -> Word:
        return _Parser(text, self.depth).body_word()

    def reserved(self) -> str:
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
            self.newlines()
            if self._closes():
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
            if not separated and not self.sees("\n") and not self._closes():
                raise self.error(f"unexpected {self.text[self.at]!r}")

    def _closes(self) -> bool:
        if self.at >= len(self.text) or self.sees(")") or self.sees(";;") or self.sees(";&"):
            return True
        return self.reserved() in _CLOSERS

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
            elif words and _declares(words[0]) and self.sees("("):
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
        parts: list[Literal] = []
        while not self.take(")"):
            if self.word() is None:
                raise self.error("an array is not closed")
            self.newlines()
        return Word(tuple(parts))

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

    def _while(self) -> Loop:
        return self._conditional("while")

    def _until(self) -> Loop:
        return self._conditional("until")

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


def _declares(word: Word) -> bool:
    return word.literal in ("declare", "local", "typeset", "readonly", "export")


_COMPOUND: dict[str, Callable[[_Parser], Command]] = {
    "(": _Parser._subshell,
    "{": _Parser._braces,
    "if": _Parser._if,
    "while": _Parser._while,
    "until": _Parser._until,
    "for": _Parser._for,
    "select": _Parser._for,
    "case": _Parser._case,
    "function": _Parser._named_function,
    "[[": _Parser._test,
}
