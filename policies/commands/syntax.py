"""The syntax tree of a shell script, as `shell.parse` returns it, before expansion.

The nodes are not frozen: a frozen dataclass takes three times as long to make, and a script may have
thousands.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Literal:
    text: str
    quoted: bool = False


@dataclass(slots=True)
class Variable:
    """`$name` or `${name<operator><operand>}`; `operator` is empty, `:-`, `%`, `#`, `[`, `len` …"""

    name: str
    operator: str = ""
    operand: Word | None = None
    quoted: bool = False


@dataclass(slots=True)
class Substitution:
    """`$(script)` or backticks; `process` for `<(script)`."""

    script: Script
    quoted: bool = False
    process: bool = False


@dataclass(slots=True)
class Arithmetic:
    text: str


Part = Literal | Variable | Substitution | Arithmetic


@dataclass(slots=True)
class Word:
    parts: tuple[Part, ...]

    @property
    def literal(self) -> str | None:
        """The word's text if it has no expansion."""
        if any(not isinstance(part, Literal) for part in self.parts):
            return None
        return "".join(part.text for part in self.parts if isinstance(part, Literal))


@dataclass(slots=True)
class Redirect:
    """`operator target`. The parser sets the body of a here-document as `target` when it reads its lines."""

    operator: str
    target: Word


@dataclass(slots=True)
class Assignment:
    name: str
    value: Word


@dataclass(slots=True)
class Simple:
    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...] = ()


@dataclass(slots=True)
class Test:
    """`[[ … ]]`, or `(( … ))` as one arithmetic word."""

    words: tuple[Word, ...]


@dataclass(slots=True)
class Group:
    body: Script
    subshell: bool


@dataclass(slots=True)
class If:
    """`branches` are (condition, body) pairs; `otherwise` is the `else`."""

    branches: tuple[tuple[Script, Script], ...]
    otherwise: Script | None


@dataclass(slots=True)
class Loop:
    """`while` and `until` have a condition; `for` has a variable and words, or an arithmetic head."""

    keyword: str
    condition: Script | None
    body: Script
    variable: str = ""
    words: tuple[Word, ...] | None = None
    head: str | None = None


@dataclass(slots=True)
class Case:
    subject: Word
    arms: tuple[Script, ...]


@dataclass(slots=True)
class Function:
    name: str
    body: Command


@dataclass(slots=True)
class Redirected:
    """A compound command with redirections."""

    command: Command
    redirects: tuple[Redirect, ...]


Command = Simple | Test | Group | If | Loop | Case | Function | Redirected


@dataclass(slots=True)
class Pipeline:
    commands: tuple[Command, ...]


@dataclass(slots=True)
class Item:
    """A pipeline, and the operator before it: `;`, `&&`, `||`, or empty for the first one of a list."""

    pipeline: Pipeline
    operator: str
    background: bool = False


@dataclass(slots=True)
class Script:
    items: tuple[Item, ...]
