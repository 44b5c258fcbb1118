"""The syntax tree of a shell script, as `shell.parse` returns it, before expansion.

The nodes are not frozen: a frozen dataclass takes three times as long to make, and a script may have
thousands.
"""

from __future__ import annotations

from msgspec import Struct


class Literal(Struct):
    text: str
    quoted: bool = False


class Variable(Struct):
    """`$name` or `${name<operator><operand>}`; `operator` is empty, `:-`, `%`, `#`, `[`, `len` …"""

    name: str
    operator: str = ""
    operand: Word | None = None
    quoted: bool = False


class Substitution(Struct):
    """`$(script)` or backticks; `process` for `<(script)`."""

    script: Script
    quoted: bool = False
    process: bool = False


class Arithmetic(Struct):
    text: str


Part = Literal | Variable | Substitution | Arithmetic


class Word(Struct):
    parts: tuple[Part, ...]

    @property
    def literal(self) -> str | None:
        """The word's text if it has no expansion."""
        if any(not isinstance(part, Literal) for part in self.parts):
            return None
        return "".join(part.text for part in self.parts if isinstance(part, Literal))


class Redirect(Struct):
    """`operator target`. The parser sets the body of a here-document as `target` when it reads its lines."""

    operator: str
    target: Word


class Assignment(Struct):
    name: str
    value: Word


class Simple(Struct):
    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...] = ()


class Test(Struct):
    """`[[ … ]]`, or `(( … ))` as one arithmetic word."""

    words: tuple[Word, ...]


class Group(Struct):
    body: Script
    subshell: bool


class If(Struct):
    """`branches` are (condition, body) pairs; `otherwise` is the `else`."""

    branches: tuple[tuple[Script, Script], ...]
    otherwise: Script | None


class Loop(Struct):
    """`while` and `until` have a condition; `for` has a variable and words, or an arithmetic head."""

    keyword: str
    condition: Script | None
    body: Script
    variable: str = ""
    words: tuple[Word, ...] | None = None
    head: str | None = None


class Case(Struct):
    subject: Word
    arms: tuple[Script, ...]


class Function(Struct):
    name: str
    body: Command


class Redirected(Struct):
    """A compound command with redirections."""

    command: Command
    redirects: tuple[Redirect, ...]


Command = Simple | Test | Group | If | Loop | Case | Function | Redirected


class Pipeline(Struct):
    commands: tuple[Command, ...]


class Item(Struct):
    """A pipeline, and the operator before it: `;`, `&&`, `||`, or empty for the first one of a list."""

    pipeline: Pipeline
    operator: str
    background: bool = False


class Script(Struct):
    items: tuple[Item, ...]
