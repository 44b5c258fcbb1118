"""The shell's expansions: from words of the syntax tree to text, as far as the variables are known."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property

from policies.commands import values
from policies.commands.model import StepBudget
from policies.commands.syntax import Arithmetic, Literal, Part, Script, Substitution, Variable, Word

_MAX_PATTERN = 128
"""Maximum length of a pattern of `${x%pattern}`: the cost of a search is its product with the value's."""

_DIGITS = re.compile(r"\d+")


class Scope:
    """The variables and positional parameters of a shell.

    `substitute` reads the commands of a `$(…)` and returns the known part of its output.
    """

    def __init__(
        self, environment: values.Environment, substitute: Callable[[Script], str], budget: StepBudget
    ) -> None:
        self.environment = environment
        self.budget = budget
        self.substitute = substitute
        self.positional: tuple[str, ...] | None = ()
        self.sourced = False
        """A script was sourced, which may have set any variable."""
        self.of_command: dict[str, str] = {}
        """The variables of the present command only."""
        self._log: list[tuple[str, str | None]] = []

    @cached_property
    def variables(self) -> dict[str, str]:
        return dict(self.environment.values)

    def set_to(self, name: str) -> str | None:
        """What a variable is set to; None if nothing that is known sets it."""
        return self.variables.get(name)

    def lookup(self, name: str) -> str | None:
        """A variable's value, or None if it is unknown."""
        value = self.set_to(name)
        if value is not None:
            return values.unknown(name) if self.sourced and value and values.is_known(value) else value
        if name == "HOSTNAME":
            return values.own(name)
        if name == "KUBERNETES_SERVICE_HOST":
            return values.other(name)
        return values.unknown(name) if self.environment.has_env_from or self.sourced else None

    def assign(self, name: str, value: str) -> None:
        self._log.append((name, self.variables.get(name)))
        self.variables[name] = value if len(value) <= values.MAX_VALUE else values.unknown(name)

    @contextmanager
    def branch(self, *, subshell: bool = False) -> Iterator[None]:
        """Commands that may not run: afterwards a variable that they changed is unknown.

        After a `subshell`, such a variable has its former value.
        """
        first = len(self._log)
        yield
        changes, self._log[first:] = self._log[first:], []
        self.budget.spend(len(changes))
        for name, before in dict(reversed(changes)).items():
            if not subshell:
                if self.variables.get(name) != before:
                    self._log.append((name, before))
                    self.variables[name] = values.unknown(name)
            elif before is None:
                self.variables.pop(name, None)
            else:
                self.variables[name] = before

    @contextmanager
    def assigned(self, variables: Mapping[str, str]) -> Iterator[None]:
        """The variables of one command: `A=b command` or `env A=b command`."""
        before, self.of_command = self.of_command, {**self.of_command, **variables}
        with self.branch(subshell=True):
            for name, value in variables.items():
                self.assign(name, value)
            yield
        self.of_command = before

    @contextmanager
    def parameters(self, positional: tuple[str, ...] | None) -> Iterator[None]:
        """The positional parameters of a function or script; None if they are unknown."""
        before, self.positional = self.positional, positional
        yield
        self.positional = before

    # Words

    def fields(self, word: Word) -> list[str]:
        """The arguments of a word: one, or several if an unquoted variable contains blanks."""
        only = word.parts[0] if len(word.parts) == 1 else None
        if isinstance(only, Literal):
            return [self._paid(only.text)]
        if _is_all_arguments(word):
            return [self._paid(argument) for argument in self.positional or ()]
        fields: list[list[str]] = [[]]
        splits = False
        for part in word.parts:
            text = self._paid(self._part(part))
            if isinstance(part, Variable) and not part.quoted and " " in text:
                first, *others = text.split(" ")
                self.budget.spend(len(others))
                fields[-1].append(first)
                fields.extend([other] for other in others)
                splits = True
            else:
                fields[-1].append(text)
        texts = ["".join(field) for field in fields]
        if splits:
            return [text for text in texts if text]
        is_removed = not texts[0] and all(
            isinstance(part, Variable | Substitution) and not part.quoted for part in word.parts
        )
        return [] if is_removed else texts

    def text(self, word: Word) -> str:
        """The word as one text, without splitting: for an assignment or a redirection."""
        if len(word.parts) == 1:
            return self._paid(self._part(word.parts[0]))
        return "".join(self._paid(self._part(part)) for part in word.parts)

    def _paid(self, text: str) -> str:
        """`text`, after its cost is spent: `$A$A$A…` multiplies it."""
        self.budget.scan(len(text))
        return text

    def _part(self, part: Part) -> str:
        match part:
            case Literal(text=text):
                return text
            case Variable():
                return self._variable(part)
            case Substitution(script=script, process=process):
                output = self.substitute(script)
                return values.unknown("file") if process else output
            case Arithmetic(text=text):
                number = text.strip()
                return number if _DIGITS.fullmatch(number) and len(number) < 12 else values.unknown("number")

    def _variable(self, variable: Variable) -> str:
        name, operator = variable.name, variable.operator
        value = self._positional(name) if not (name[0].isalpha() or name[0] == "_") else self.lookup(name)
        match operator:
            case "":
                return values.unknown(name) if value is None else value
            case ":-" | "-" | ":=" | "=":
                if value is None or (not value and operator[0] == ":"):
                    default = self.text(variable.operand) if variable.operand else ""
                    if operator.endswith("="):
                        self.assign(name, default)
                    return default
                return value
            case ":?" | "?":
                return values.unknown(name) if value is None else value
            case ":+" | "+":
                return self.text(variable.operand) if variable.operand and value else ""
        return self._trimmed(name, value, operator, variable.operand)

    def _trimmed(self, name: str, value: str | None, operator: str, operand: Word | None) -> str:
        """`${x%suffix}`, `${x%%suffix*}`, `${x#prefix}` and `${x##*prefix}` of a known text."""
        pattern = operand.literal if operand else None
        if value is None or not values.is_known(value) or not pattern:
            return values.unknown(name)
        text = pattern.removesuffix("*") if operator[0] == "%" else pattern.removeprefix("*")
        outer = text != pattern
        if not text or len(text) > _MAX_PATTERN or set(text) & set("*?["):
            return values.unknown(name)
        self.budget.scan(len(value) * len(text) // 16)
        match operator:
            case "%" | "%%" if outer:
                before, found, _ = value.rpartition(text) if operator == "%" else value.partition(text)
                return before if found else value
            case "#" | "##" if outer:
                _, found, after = value.rpartition(text) if operator == "##" else value.partition(text)
                return after if found else value
            case "%" | "%%":
                return value.removesuffix(text)
            case "#" | "##":
                return value.removeprefix(text)
        return values.unknown(name)

    def _positional(self, name: str) -> str | None:
        if self.positional is None or not (name.isascii() and name.isdigit()):
            return None
        index = int(name[:6])
        return self.positional[index - 1] if 0 < index <= len(self.positional) else None


def _is_all_arguments(word: Word) -> bool:
    """Whether the whole word is `$@`, `"$@"` or `$*`."""
    parts = [part for part in word.parts if not isinstance(part, Literal) or part.text]
    return len(parts) == 1 and isinstance(parts[0], Variable) and parts[0].name in ("@", "*")
