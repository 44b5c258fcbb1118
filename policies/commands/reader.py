"""Reads a command: from its argv and its container's environment to a `CommandSummary`.

`Walk` goes through scripts as a shell would run them; the reader here decides which program each simple
command runs. Every word and character is paid for from a budget, and nesting is limited.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from policies.commands import client_hosts, values
from policies.commands.clients import clients
from policies.commands.durations import limited, slept
from policies.commands.ends import ends_script
from policies.commands.hosts import is_url
from policies.commands.interpreters import hosts_of_code, read_python
from policies.commands.model import BudgetSpent, CommandSummary, Host, Reach, ScriptLoop, StepBudget
from policies.commands.options import parse_options, valued
from policies.commands.programs import (
    CODE_OPTIONS,
    DECLARING,
    SCRIPT_SUFFIXES,
    SHELLS,
    TEXT_PROGRAMS,
    is_python,
    shell_operands,
)
from policies.commands.walk import Walk
from policies.commands.wrappers import Unwrapped, unwrap

MAX_TEXT = 131_072
"""Maximum length of an argument in Linux (MAX_ARG_STRLEN, 32 pages)."""

_ECHO_OPTION = re.compile(r"-[neE]+")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_OVERHEAD = 20
"""Steps for a command without words."""


def read(
    argv: Sequence[Any],
    env: Sequence[Any] = (),
    env_from: Sequence[Any] = (),
    *,
    static: bool = True,
    host_network: bool = False,
    local_names: Collection[str] = (),
    budget: StepBudget | None = None,
) -> CommandSummary:
    """The programs that a command runs, the hosts that it reaches, and its loops and times. Never raises.

    `argv`: an exec probe's `command`, or a container's `command` and `args`. `env`, `env_from`: the
    container's own, as JSON. `static`: the kubelet expands `$(VAR)` only from literal values, as it does in
    probes and lifecycle hooks; False for a container's own command. `host_network`: the node's address is the
    pod's. `local_names`: further host names of the pod (spec.hostname, hostAliases on loopback). `budget`:
    shared by all the commands of a review.
    """
    budget = StepBudget() if budget is None else budget
    before = budget.spent
    try:
        words = [word for word in argv if isinstance(word, str)]
        budget.spend(_OVERHEAD + len(words) + len(local_names))
        if max(map(len, words), default=0) > MAX_TEXT:
            return _unread("an argument is longer than Linux can execute", budget.spent - before)
        environment = values.Environment(
            env, env_from, budget=budget, static=static, host_network=host_network
        )
        reader = _Reader(environment, frozenset(map(str.lower, local_names)), budget)
        try:
            reader.start(words)
        finally:
            reader.close()
    except BudgetSpent:
        return _unread("the command is too long to be read whole", budget.spent - before)
    except RecursionError:  # only if the stack is deep already
        return _unread("the command is nested too deep to be read", budget.spent - before)
    return reader.summary(budget.spent - before)


def _unread(why: str, steps: int) -> CommandSummary:
    return CommandSummary(undecidable=(why,), complete=False, steps=steps)


class _Reader(Walk):
    """A walk that also reads which program each simple command runs."""

    def run(self, words: Sequence[str], stdin: str | None = None, hosts: Sequence[Host] = ()) -> float:
        self.budget.spend(10 + len(words))
        unwrapped = unwrap(words)
        if self.conditions and unwrapped.words and (unwrapped.replaces_shell or ends_script(unwrapped.words)):
            self.conditions += 1  # until the end: the rest runs only if this branch was not taken
        if hosts:
            self.record((), hosts)
        elif words and not unwrapped.words:
            self.record(words[:1])
        if not unwrapped.words:
            return 0.0
        if not unwrapped.environment:
            return self._limited(unwrapped, stdin)
        with self.scope.assigned(unwrapped.environment):
            return self._limited(unwrapped, stdin)

    def _limited(self, unwrapped: Unwrapped, stdin: str | None) -> float:
        if unwrapped.limit is None:
            return self._program(unwrapped, stdin)
        self.timeouts += 1
        duration = self._program(unwrapped, stdin)
        self.timeouts -= 1
        return limited(duration, unwrapped.limit)

    def _program(self, unwrapped: Unwrapped, stdin: str | None) -> float:
        words = unwrapped.words
        name = words[0].rpartition("/")[2].lower()
        arguments = words[1:]
        if (
            unwrapped.arguments_from_input
            and name in client_hosts.client_names()
            and not any(map(is_url, arguments))
        ):
            return self.record(words, [Host("", Reach.UNDECIDABLE, name)])
        if name in self.functions:
            return self._call(name, arguments)
        if name in SHELLS:
            return self._shell(words, name, stdin)
        if is_python(name):
            return self._python(words, stdin)
        if name in CODE_OPTIONS:
            return self._interpreter(words, name)
        if name.endswith(SCRIPT_SUFFIXES) and name not in client_hosts.client_names():
            self.scripts.append(values.show(words[0]))
            return self.record(words)
        if (builtin := self._builtin(name, words)) is not None:
            return builtin
        reached = client_hosts.reached(name, arguments, self.context)
        if reached is not None:
            return self.record(words, reached.hosts, reached.timeout)
        if name in TEXT_PROGRAMS:
            self.output = _output(name, arguments, stdin)
            return self.record(words)
        if values.has_unknown(words[0]):
            self.undecidable(f"the program {values.show(words[0][:80])} is known only at run time")
        return self.record(words, list(client_hosts.urls_of_unknown_program(name, arguments, self.context)))

    def _call(self, name: str, arguments: Sequence[str]) -> float:
        body = self.functions.pop(name)  # a recursive call is not read again
        with self.scope.parameters(tuple(arguments)):
            duration = self.nested(partial(self.node, body))
        self.functions[name] = body
        return duration

    def _builtin(self, name: str, words: Sequence[str]) -> float | None:
        """Read a builtin that changes the shell or waits; None for other programs."""
        arguments = words[1:]
        match name:
            case "sleep" | "usleep":
                return self.record(words, timeout=slept(arguments))
            case "eval":
                return self.read_text(" ".join(arguments), self.scope.positional)
            case "." | "source":
                self.scope.sourced = True
                self.undecidable(
                    f"{values.show(arguments[0][:80]) if arguments else 'a file'} may set any variable"
                )
            case "set":
                if "--" in arguments:
                    self.scope.positional = tuple(arguments[arguments.index("--") + 1 :])
            case "shift":
                self.scope.positional = None
            case "read" | "mapfile" | "readarray":
                for word in arguments:
                    if word.isidentifier():
                        self.scope.assign(word, values.unknown(word))
            case "su":
                parsed = parse_options(arguments, valued("-c --command -s --shell"))
                return self.read_text(parsed.value(("-c", "--command")))
            case _ if name in DECLARING:
                for word in arguments:
                    if assigned := _ASSIGNED.fullmatch(word):
                        self.scope.assign(assigned[1], assigned[2])
            case _:
                return None
        return self.record(words)

    # Shells and interpreters

    def _shell(self, words: Sequence[str], name: str, stdin: str | None) -> float:
        script, operands = shell_operands(words[1:])
        is_file = not script and bool(operands) and operands[0] != "-"
        self.record((words[0], *operands) if is_file else words[:1])
        with self.scope.branch(subshell=True):
            if script:
                return self.read_text(operands[0], tuple(operands[2:])) if operands else 0.0
            if is_file:
                self.scripts.append(values.show(operands[0]))
                return 0.0
            if stdin is not None:
                return self.read_text(stdin)
            self.undecidable(f"{name} reads its commands from its input")
            return 0.0

    def _python(self, words: Sequence[str], stdin: str | None) -> float:
        for index, word in enumerate(words[1:], 1):
            if word in ("-c", "-m") or (word[:1] == "-" and word[1:2].isalpha() and word[-1] in "cm"):
                if index + 1 == len(words):
                    break
                following = words[index + 1]
                if word[-1] == "c":
                    return self._python_code(words, following)
                self.scripts.append(f"-m {values.show(following)}")
                if following in clients():
                    return self.run(words[index + 1 :])
                return self.record(words)
            if word == "-":
                break
            if word[:1] != "-" and words[index - 1] not in ("-W", "-X"):
                self.scripts.append(values.show(word))
                return self.record(words)
        if stdin is not None:
            return self._python_code(words, stdin)
        return self.record(words)

    def _python_code(self, words: Sequence[str], text: str) -> float:
        code = read_python(text, self.context, self.budget)
        if code.undecidable:
            self.undecidable(code.undecidable)
        duration = self.record((*words[:1], "-c", text[:200]), code.hosts, code.timeout, code.calls)
        for command in code.commands[:50]:
            with self.scope.branch(subshell=True):
                duration += self.read_text(command) if isinstance(command, str) else self.run(command)
        if code.endless:
            self.loops.append(ScriptLoop("while", self.timeouts > 0, code.hosts))
        return duration

    def _interpreter(self, words: Sequence[str], name: str) -> float:
        """Read the code of an interpreter other than Python."""
        options = CODE_OPTIONS[name]
        for index, word in enumerate(words[1:], 1):
            if word in options and index + 1 < len(words):
                return self.record(
                    words[:2], hosts_of_code(words[index + 1], name, self.context, self.budget)
                )
            if word[:1] != "-":
                self.scripts.append(values.show(word))
                break
        return self.record(words)


def _output(name: str, arguments: Sequence[str], stdin: str | None) -> str | None:
    """The output of `echo`, `printf`, and `cat` without arguments; None if it is unknown."""
    if name == "cat" and not arguments:
        return stdin
    if name not in ("echo", "printf"):
        return None
    texts = [word for index, word in enumerate(arguments) if index or not _ECHO_OPTION.fullmatch(word)]
    if name == "printf" and len(texts) > 1:  # the first is the format
        texts = texts[1:]
    return " ".join(texts).replace("\\n", "\n")
