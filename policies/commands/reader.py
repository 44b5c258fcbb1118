"""From a command's argv and its container's environment to a `CommandSummary`.

The reader walks the syntax tree as a shell would run it, keeping the variables it knows, and applies
the client table to every simple command. It runs nothing, raises nothing on any input, and is bounded:
every word and every character is paid for from a budget, nesting has a limit, and a command that can't be
read whole is undecided.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from policies.commands import reach, shell, values
from policies.commands.budget import Budget, BudgetSpent
from policies.commands.ends import is_bounded, is_endless, last_number, rounds
from policies.commands.expansion import Scope
from policies.commands.hosts import is_url, reach_of, split_port, url_hosts
from policies.commands.model import Command, CommandSummary, Host, Loop, Reach, ScriptFile
from policies.commands.options import OptionSyntax, parse_options, seconds
from policies.commands.python_code import Code, read_python
from policies.commands.syntax import (
    Arithmetic,
    Case,
    Function,
    Group,
    If,
    Literal,
    Pipeline,
    Redirect,
    Redirected,
    Script,
    Simple,
    Test,
    Word,
)
from policies.commands.syntax import Command as Node
from policies.commands.syntax import Loop as LoopNode
from policies.commands.wrappers import Unwrapped, unwrap

MAX_TEXT = 131_072
"""Longest single argument that Linux executes (MAX_ARG_STRLEN, 32 pages); more is an error at exec."""

SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh"})
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?", re.ASCII)
_CODE_OPTIONS = {
    "node": ("-e", "--eval", "-p", "--print", "-pe"),
    "nodejs": ("-e", "--eval", "-p", "--print"),
    "deno": ("eval",),
    "bun": ("-e",),
    "perl": ("-e", "-E", "-ne", "-le", "-we"),
    "ruby": ("-e",),
    "php": ("-r",),
    "lua": ("-e",),
    "rscript": ("-e",),
    "pwsh": ("-c", "-command"),
}
"""Interpreters other than Python, with the options that give them code."""
_SCRIPT_SUFFIXES = (".sh", ".bash", ".py", ".pl", ".rb", ".js", ".php", ".lua")
_STRING = re.compile(r"'([^'\n]*)'|\"([^\"\n]*)\"|`([^`\n]*)`")
_NETWORK_CODE = re.compile(
    r"\b(?:http|https|net|fetch|axios|socket|Socket|TCPSocket|LWP|curl|redis|pg|mysql)\b"
)

_INERT = frozenset(
    {"echo", "printf", "logger", "grep", "egrep", "fgrep", "sed", "awk", "gawk", "jq", "yq", "cat"}
    | {"tee", "test", "[", "[[", ":", "true", "false", "head", "tail", "cut", "tr", "sort", "wc"}
    | {"date", "ls", "find", "touch", "rm", "mkdir", "cp", "mv", "stat", "pgrep", "ps", "kill"}
    | {"basename", "dirname", "seq", "expr", "xxd", "od", "base64", "cd", "unset", "shift", "trap"}
    | {"wait", "exit", "return", "break", "continue", "alias"}
)
"""Programs that only handle text or files: a URL among their arguments is a text."""
_ECHO_OPTION = re.compile(r"-[neE]+")
_A_DAY = 24 * 3600
_DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)


_OVERHEAD = 20
"""Steps of a command that has no words."""

MAX_LISTED = 32
"""Words of a `for` loop's list that are looked at."""

_PATTERN = re.compile(r"[{*?\[]")
_MENTIONED = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_AMBIGUOUS = frozenset(
    {"host", "http", "https", "ray", "mc", "hf", "az", "ab", "nats", "influx", "consul", "vault"}
)
"""Client names that are also ordinary words: in text that isn't shell they are no evidence."""


def read(
    argv: Sequence[Any],
    env: Sequence[Any] = (),
    env_from: Sequence[Any] = (),
    *,
    static: bool = True,
    host_network: bool = False,
    local_names: Collection[str] = (),
    budget: Budget | None = None,
) -> CommandSummary:
    """What a command reaches, runs and waits for.

    `argv`: an exec probe's `command`, or a container's `command` + `args`. `env`, `env_from`: the
    container's own, as JSON. `static`: kubelet expands `$(VAR)` only from literal values, as it does in
    probes and lifecycle hooks; False for a container's own command. `host_network`: the node's address is the
    pod's. `local_names`: further host names of the pod (spec.hostname, hostAliases on loopback).

    `budget`: what the reading may cost, shared by all the commands of a review; a whole one where none is
    given. Once it is spent, every further summary is incomplete.

    Never raises: text that can't be read is undecidable.
    """
    budget = Budget() if budget is None else budget
    before = budget.spent
    try:
        words = [word for word in argv if isinstance(word, str)]
        budget.spend(_OVERHEAD + len(words) + len(local_names))
        if any(len(word) > MAX_TEXT for word in words):
            return _unread("an argument is longer than Linux can execute", budget.spent - before)
        environment = values.Environment(
            env, env_from, budget=budget, static=static, host_network=host_network
        )
        reader = _Reader(environment, frozenset(name.lower() for name in local_names), budget)
        try:
            reader.start(words)
        finally:
            reader.let_go()
    except BudgetSpent:
        return _unread("the command is too long to be read whole", budget.spent - before)
    except RecursionError:  # the limits on nesting make this unreachable from a shallow stack
        return _unread("the command is nested too deep to be read", budget.spent - before)
    return reader.summary(budget.spent - before)


def _unread(why: str, steps: int) -> CommandSummary:
    return CommandSummary(undecidable=(why,), complete=False, steps=steps)


def is_python(program: str) -> bool:
    """Whether a program of this name is a Python interpreter: `python3.12`, `pypy`."""
    return _PYTHON.fullmatch(program) is not None


_HOSTS_FILE = "/etc/hosts"
_WRITERS = frozenset({"tee", "sed", "cp", "mv", "install", "dd", "sponge", "ed", "ln"})


def _doubted(host: Host) -> Host:
    return replace(host, reach=Reach.UNDECIDABLE) if host.reach is Reach.EXTERNAL else host


def _all_doubted(hosts: Iterable[Host]) -> tuple[Host, ...]:
    return tuple(map(_doubted, hosts))


def _tests(pipeline: Pipeline) -> bool:
    """Whether a pipeline only tests something: `[ … ]`, `[[ … ]]`, `test …`, `… | grep -q …`."""
    node = pipeline.commands[-1]
    if isinstance(node, Simple):
        return bool(node.words) and node.words[0].literal in ("[", "test", "grep", "egrep")
    return isinstance(node, Test)


class _Reader:
    """The state while one command is read: known variables and functions, and findings so far."""

    def __init__(self, environment: values.Environment, local_names: Collection[str], budget: Budget) -> None:
        self.environment = environment
        self.budget = budget
        self.scope = Scope(environment, self.substitute, budget)
        self.context = reach.Context(self.scope.lookup, self.scope.variables.get, local_names)
        self.commands: list[Command] = []
        self.loops: list[Loop] = []
        self.scripts: list[ScriptFile] = []
        self.notes: dict[str, None] = {}
        self.functions: dict[str, Node] = {}
        self.depth = 0
        self.piped: str | None = None
        """What the command before in a pipeline prints, as far as it is known."""
        self.printed: str | None = None
        """What the last command printed, likewise."""
        self.limits = 0
        """How many `timeout N` enclose the current position."""
        self.conditions = 0
        """How many conditions the current position depends on."""
        self.seconds = 0.0
        self.ends: dict[int, tuple[LoopNode, bool, int | None]] = {}
        self.substituted = 0.0
        """Seconds of the substitutions in the words being expanded."""
        self.writes_hosts = False
        """Whether it writes to /etc/hosts, after which a name may lead to the pod itself."""

    def start(self, argv: list[str]) -> None:
        for word in argv if self.environment.emptied else ():
            for name in self.environment.emptied_in(word):
                self.undecidable(f"$({name}) is empty in a probe: kubelet knows only literal values there")
        self.seconds = self.run([self.environment.expand(word) for word in argv])

    def let_go(self) -> None:
        """End the circle of the reader and its scope: a thousand variables would wait in it for the garbage
        collector."""
        self.scope.substitute = _over

    def summary(self, steps: int) -> CommandSummary:
        if self.writes_hosts:
            self.undecidable(f"it writes to {_HOSTS_FILE}, so a name may lead back to the pod")
            self.commands = [replace(each, hosts=_all_doubted(each.hosts)) for each in self.commands]
            self.loops = [replace(each, hosts=_all_doubted(each.hosts)) for each in self.loops]
        return CommandSummary(
            commands=tuple(self.commands),
            loops=tuple(self.loops),
            scripts=tuple(dict.fromkeys(self.scripts)),
            seconds=self.seconds,
            undecidable=tuple(self.notes),
            steps=steps,
        )

    # Scripts

    def read_text(self, text: str, positional: tuple[str, ...] | None = ()) -> float:
        """Read `text` as a shell script in the present scope. Returns its seconds."""
        if values.has_unknown(text[:1]):
            self.undecidable(f"the script {values.show(text[:80])} is known only at run time")
            return 0.0
        if self.depth >= shell.MAX_DEPTH:
            self.undecidable("the script is nested too deep to be read")
            return 0.0
        before, self.scope.positional = self.scope.positional, positional
        self.depth += 1
        try:
            script = shell.parse(text, self.budget, self.depth)
            return self.script(script)
        except shell.ShellError as error:
            self.undecidable(f"the shell text could not be read: {error}")
            return self._partial(error, text)
        finally:
            self.depth -= 1
            self.scope.positional = before

    def _partial(self, error: shell.ShellError, text: str) -> float:
        """Read the parsed part of broken text. The hosts in it are a guess: a shell may refuse all of it."""
        first = len(self.commands)
        length = self.script(error.partial)
        self.budget.spend(len(self.commands) - first)
        for index, command in enumerate(self.commands[first:], first):
            self.commands[index] = replace(command, hosts=tuple(map(_doubted, command.hosts)))
        self.budget.spend(20 + (len(text) - error.position) // 4)
        unread = {word.lower() for word in _MENTIONED.findall(text[error.position :])}
        for client in sorted(unread & reach.NAMES - _AMBIGUOUS):
            self.record((client,), [Host("", Reach.UNDECIDABLE, client)])
        return length

    def script(self, script: Script) -> float:
        total, tested = 0.0, False
        for item in script.items:
            conditions = self.conditions
            if item.operator == "||" or (item.operator == "&&" and tested):
                with self.branch():
                    total += self.pipeline(item.pipeline)
            elif item.operator == "&&":
                with self.scope.branch():
                    total += self.pipeline(item.pipeline)
            else:
                length = self.pipeline(item.pipeline)
                total += 0.0 if item.background else length
            if item.background:  # it holds up nothing
                self.conditions = conditions
            tested = _tests(item.pipeline)
        return total

    @contextmanager
    def branch(self) -> Iterator[None]:
        """Commands that run only in some cases."""
        self.conditions += 1
        with self.scope.branch():
            yield
        self.conditions -= 1

    def pipeline(self, pipeline: Pipeline) -> float:
        if len(pipeline.commands) == 1:
            return self.node(pipeline.commands[0])
        longest, printed = 0.0, None
        for index, node in enumerate(pipeline.commands):
            self.piped, self.printed = printed if isinstance(node, Simple) else None, None
            with self.scope.branch(leaks=index == len(pipeline.commands) - 1):
                longest = max(longest, self.node(node))
            printed = self.printed if isinstance(node, Simple) else None
        self.piped = None
        return longest

    def node(self, node: Node, redirects: tuple[Redirect, ...] = ()) -> float:
        self.budget.spend(5)
        if isinstance(node, Simple):
            return self.simple(node, redirects)
        if isinstance(node, Redirected):
            if touched := self._devtcp(node.redirects):
                self.record((), touched)
            return self.node(node.command, (*node.redirects, *redirects))
        if self.depth >= shell.MAX_DEPTH:
            self.undecidable("the script is nested too deep to be read")
            return 0.0
        self.depth += 1
        try:
            return self.compound(node)
        finally:
            self.depth -= 1

    def compound(self, node: Node) -> float:
        match node:
            case Test(words=words):
                return self._expanded_only(words)
            case Group(body=body, subshell=subshell):
                if not subshell:
                    return self.script(body)
                with self.scope.branch(leaks=False):
                    return self.script(body)
            case If():
                return self.if_(node)
            case Case(subject=subject, arms=arms):
                total, longest = self._expanded_only((subject,)), 0.0
                for arm in arms:
                    with self.branch():
                        longest = max(longest, self.script(arm))
                return total + longest
            case LoopNode():
                return self.loop(node)
            case Function(name=name, body=body):
                self.functions[name] = body
        return 0.0

    def if_(self, node: If) -> float:
        total, longest = 0.0, 0.0
        for condition, body in node.branches:
            total += self.script(condition)
            with self.branch():
                longest = max(longest, self.script(body))
        if node.otherwise is not None:
            with self.branch():
                longest = max(longest, self.script(node.otherwise))
        return total + longest

    def loop(self, node: LoopNode) -> float:
        first = len(self.commands)
        ends, count = self._end_of(node)
        listed = [field for word in node.words or () for field in self.scope.fields(word)]
        around, self.substituted = self.substituted, 0.0
        with self.scope.branch():
            if node.variable:
                self.scope.assign(node.variable, self._loop_value(node, listed[:MAX_LISTED]))
            once = self.script(node.condition) if node.condition is not None else 0.0
            once += self.script(node.body)
        if self.conditions and is_endless(node, self.budget):
            self.conditions += 1  # for good, as in `run`
        inside = self.commands[first:]
        self.budget.spend(len(inside))
        self.loops.append(
            Loop(
                keyword=node.keyword,
                bounded=ends or self.limits > 0,
                hosts=tuple(host for command in inside for host in command.hosts),
                count=count,
            )
        )
        if not ends and once > 0:
            return math.inf
        return around + (once * count if count is not None and once > 0 else once)

    def _end_of(self, node: LoopNode) -> tuple[bool, int | None]:
        """Whether the loop ends, and after how many rounds; recorded once, however often a function runs
        it."""
        known = self.ends.get(id(node))
        if known is None:
            ends = is_bounded(node, self.budget)
            # The node is kept with the answer: its id must not be another's meanwhile.
            known = self.ends[id(node)] = (node, ends, rounds(node, self.budget) if ends else None)
        return known[1:]

    def _loop_value(self, node: LoopNode, words: list[str]) -> str:
        """The last word of a `for` loop's list if it represents all of them: numbers, or similar hosts.

        The last, because a script that goes through the pods of a StatefulSet waits for the last one too.
        """
        if number := last_number((node.words or ())[:MAX_LISTED], self.budget):
            return number
        if not words or any(_PATTERN.search(word) for word in words):
            return values.unknown(node.variable)
        reaches = {reach_of(split_port(word)[0], self.context.local_names) for word in words}
        return words[-1] if len(reaches) == 1 else values.unknown(node.variable)

    def substitute(self, script: Script) -> str:
        """Read the commands of a `$(…)`; its output if that is the pod's own name or address."""
        outer = self.substituted
        self.substituted = 0.0
        first = len(self.commands)
        self.depth += 1
        try:
            with self.scope.branch(leaks=False):
                length = self.script(script) if self.depth <= shell.MAX_DEPTH else 0.0
        finally:
            self.depth -= 1
        self.substituted = outer + length
        if len(self.commands) == first:
            return values.unknown("(command)")
        source = self.commands[first]
        if source.name == "hostname" and "-f" not in source.argv and "-d" not in source.argv:
            return values.own("(hostname)")
        if source.argv[:2] in (("cat", "/etc/hostname"), ("uname", "-n"), ("hostname", "-f")):
            return values.own("(hostname)")
        return values.unknown(f"({source.name or 'command'})")

    def _expanded_only(self, words: Sequence[Word]) -> float:
        """Expand words for the sake of the substitutions inside them. Returns their seconds."""
        self.budget.spend(len(words))
        for word in words:
            if any(not isinstance(part, Literal | Arithmetic) for part in word.parts):
                self.scope.fields(word)
        length, self.substituted = self.substituted, 0.0
        return length

    # Simple commands

    def simple(self, node: Simple, outer: tuple[Redirect, ...]) -> float:
        outside, self.substituted = self.substituted, 0.0
        words = [field for word in node.words for field in self.scope.fields(word)]
        assigned = {each.name: self.scope.text(each.value) for each in node.assignments}
        touched = self._devtcp(node.redirects)
        piped, self.piped = self.piped, None
        given = self._input((*outer, *node.redirects), piped) if words else None
        length, self.substituted = self.substituted, outside
        if not words:
            for name, value in assigned.items():
                self.scope.assign(name, value)
            return length + self.run((), touched=touched)
        if not assigned:
            return length + self.run(words, given, touched)
        with self.scope.branch(leaks=False):
            for name, value in assigned.items():
                self.scope.assign(name, value)
            return length + self.run(words, given, touched)

    def _devtcp(self, redirects: Sequence[Redirect]) -> list[Host]:
        """The hosts that redirections from and to `/dev/tcp/host/port` reach."""
        found: list[Host] = []
        for redirect in redirects:
            self.budget.spend(1)
            if redirect.operator.startswith("<<"):
                continue
            path = self.scope.text(redirect.target)
            self.writes_hosts |= path == _HOSTS_FILE and ">" in redirect.operator
            if path.startswith("/dev/") and (touched := reach.devtcp(path, self.context)):
                self.budget.spend(4)
                found.append(touched)
        return found

    def _input(self, redirects: Sequence[Redirect], piped: str | None) -> str | None:
        """The text of the last here-document or here-string, else the text from the pipe."""
        for redirect in reversed(redirects):
            if redirect.operator in ("<<", "<<-", "<<<"):
                return self.scope.text(redirect.target)
        return piped

    # Programs

    def undecidable(self, note: str) -> None:
        self.notes[note] = None

    def record(
        self,
        words: Sequence[str],
        hosts: Sequence[Host] = (),
        timeout: float | None = None,
        calls: tuple[str, ...] = (),
    ) -> float:
        """Note a command. Returns its seconds."""
        self.budget.spend(3 + len(words) + 4 * len(hosts))
        argv = tuple(values.show(word) for word in words)
        name = argv[0].rpartition("/")[2].lower() if argv else ""
        self.writes_hosts |= name in _WRITERS and _HOSTS_FILE in argv
        self.commands.append(Command(name, argv, tuple(hosts), timeout, calls, self.conditions > 0))
        return timeout or 0.0

    def run(self, words: Sequence[str], given: str | None = None, touched: Sequence[Host] = ()) -> float:
        """Read a simple command. `given`: a here-document or here-string; `touched`: hosts of redirections.

        Returns the seconds that its stated timeouts allow.
        """
        self.budget.spend(10 + len(words))
        unwrapped = unwrap(words)
        if self.conditions and unwrapped.words and (unwrapped.replaced or _stays(unwrapped.words)):
            self.conditions += 1  # for good: the rest runs only if this branch was not taken
        if not unwrapped.words:
            if touched or words:
                self.record(words[:1] if not touched else (), touched)
            return 0.0
        if touched:
            self.record((), touched)
        if not unwrapped.environment:
            return self._limited(unwrapped, given)
        with self.scope.branch(leaks=False):
            for name, value in unwrapped.environment.items():
                self.scope.assign(name, value)
            return self._limited(unwrapped, given)

    def _limited(self, unwrapped: Unwrapped, given: str | None) -> float:
        if unwrapped.limit is None:
            return self._program(unwrapped, given)
        self.limits += 1
        length = self._program(unwrapped, given)
        self.limits -= 1
        return min(length, unwrapped.limit) if length else unwrapped.limit

    def _program(self, unwrapped: Unwrapped, given: str | None) -> float:
        words = unwrapped.words
        name = words[0].rpartition("/")[2].lower()
        arguments = words[1:]
        if unwrapped.arguments_from_input and name in reach.NAMES and not any(map(is_url, arguments)):
            return self.record(words, [Host("", Reach.UNDECIDABLE, name)])
        if name in self.functions:
            return self._call(name, arguments)
        if name in SHELLS:
            return self._shell(words, name, given)
        if is_python(name):
            return self._python(words, given)
        if name in _CODE_OPTIONS:
            return self._interpreter(words, name)
        if name.endswith(_SCRIPT_SUFFIXES) and name not in reach.NAMES:
            self.scripts.append(ScriptFile(values.show(words[0]), ""))
            return self.record(words)
        if (builtin := self._builtin(name, words)) is not None:
            return builtin
        reached = reach.reached(name, arguments, self.context)
        if reached is not None:
            return self.record(words, reached.hosts, reached.timeout)
        if name in _INERT:
            self.printed = _printed(name, arguments, given)
            return self.record(words)
        if values.has_unknown(words[0]):
            self.undecidable(f"the program {values.show(words[0][:80])} is known only at run time")
        return self.record(words, list(reach.urls_of_unknown_program(name, arguments, self.context)))

    def _call(self, name: str, arguments: Sequence[str]) -> float:
        if self.depth >= shell.MAX_DEPTH:
            self.undecidable("the script is nested too deep to be read")
            return 0.0
        body = self.functions.pop(name)  # so that a function that calls itself is read once
        before, self.scope.positional = self.scope.positional, tuple(arguments)
        self.depth += 1
        try:
            return self.node(body)
        finally:
            self.depth -= 1
            self.scope.positional = before
            self.functions[name] = body

    def _builtin(self, name: str, words: Sequence[str]) -> float | None:
        """Seconds of a builtin that changes the shell or waits; None if it is another program."""
        arguments = words[1:]
        match name:
            case "sleep" | "usleep":
                lengths = [seconds(word) for word in arguments]
                return self.record(words, timeout=sum(length or 0.0 for length in lengths) or None)
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
                parsed = parse_options(
                    arguments, OptionSyntax(frozenset({"-c", "--command", "-s", "--shell"}))
                )
                return self.read_text(parsed.value(("-c", "--command")))
            case _ if name in _DECLARING:
                for word in arguments:
                    if assigned := _ASSIGNED.fullmatch(word):
                        self.scope.assign(assigned[1], assigned[2])
            case _:
                return None
        return self.record(words)

    # Shells and interpreters

    def _shell(self, words: Sequence[str], name: str, given: str | None) -> float:
        script, operands = shell_operands(words[1:])
        is_file = not script and bool(operands) and operands[0] != "-"
        self.record((words[0], *operands) if is_file else words[:1])
        with self.scope.branch(leaks=False):
            if script:
                return self.read_text(operands[0], tuple(operands[2:])) if operands else 0.0
            if is_file:
                self.scripts.append(ScriptFile(values.show(operands[0]), name))
                return 0.0
            if given is not None:
                return self.read_text(given)
            self.undecidable(f"{name} reads its commands from its input")
            return 0.0

    def _python(self, words: Sequence[str], given: str | None) -> float:
        name = words[0].rpartition("/")[2]
        for index, word in enumerate(words[1:], 1):
            if word in ("-c", "-m") or (word[:1] == "-" and word[1:2].isalpha() and word[-1] in "cm"):
                if index + 1 == len(words):
                    break
                following = words[index + 1]
                if word[-1] == "c":
                    return self._python_code(words, following)
                self.scripts.append(ScriptFile(f"-m {values.show(following)}", name))
                return self.record(words)
            if word == "-":
                break
            if word[:1] != "-" and words[index - 1] not in ("-W", "-X"):
                self.scripts.append(ScriptFile(values.show(word), name))
                return self.record(words)
        if given is not None:
            return self._python_code(words, given)
        return self.record(words)

    def _python_code(self, words: Sequence[str], text: str) -> float:
        code = read_python(text, self.context, self.budget)
        if code.undecidable:
            self.undecidable(code.undecidable)
        length = self.record((*words[:1], "-c", text[:200]), code.hosts, code.timeout, code.calls)
        length += self._started(code)
        if code.endless:
            bounded = self.limits > 0
            self.loops.append(Loop("while", bounded, code.hosts))
        return length

    def _started(self, code: Code) -> float:
        """What Python code gives to a shell or starts itself."""
        length = 0.0
        for command in code.commands[:50]:
            with self.scope.branch(leaks=False):
                length += self.read_text(command) if isinstance(command, str) else self.run(command)
        return length

    def _interpreter(self, words: Sequence[str], name: str) -> float:
        """Code of another language is not parsed: only URLs in its string literals are read."""
        options = _CODE_OPTIONS[name]
        for index, word in enumerate(words[1:], 1):
            if word in options and index + 1 < len(words):
                return self.record(words[:2], self._hosts_of_code(words[index + 1], name))
            if word[:1] != "-":
                self.scripts.append(ScriptFile(values.show(word), name))
                break
        return self.record(words)

    def _hosts_of_code(self, text: str, name: str) -> list[Host]:
        self.budget.spend(len(text) // 8)
        found: list[Host] = []
        for literal in _STRING.finditer(text):
            self.budget.spend(2)
            inside = literal[1] or literal[2] or literal[3] or ""
            if is_url(inside):
                self.budget.spend(8)
                found.extend(url_hosts(inside, name, self.context.local_names))
            elif inside in ("localhost", "127.0.0.1", "::1"):
                found.append(Host(inside, Reach.LOCAL, name))
        if not found and _NETWORK_CODE.search(text):
            found.append(Host("", Reach.UNDECIDABLE, name))
        return [
            replace(each, reach=Reach.UNDECIDABLE if each.reach is Reach.EXTERNAL else each.reach)
            for each in found
        ]


def _over(_: Script) -> str:
    return ""


def _printed(name: str, arguments: Sequence[str], given: str | None) -> str | None:
    """What `echo`, `printf` and a `cat` of its input print; None where it isn't known."""
    if name == "cat" and not arguments:
        return given
    if name not in ("echo", "printf"):
        return None
    texts = [word for index, word in enumerate(arguments) if index or not _ECHO_OPTION.fullmatch(word)]
    if name == "printf" and len(texts) > 1:  # the first is the format
        texts = texts[1:]
    return " ".join(texts).replace("\\n", "\n")


def _stays(words: Sequence[str]) -> bool:
    """Whether a command ends the script well, or holds it for as long as the container lives."""
    match ("".join(words[:1]).rpartition("/")[2], *words[1:]):
        case ("exit", "0") | ("sleep", "infinity" | "inf") | ("wait", *_):
            return True
        case ("sleep", length):
            return (seconds(length) or 0) >= _A_DAY
        case ("tail", *arguments):
            return "-f" in arguments or "-F" in arguments
        case ("ray", "start", *arguments):
            return "--block" in arguments
    return False


def shell_operands(words: Sequence[str]) -> tuple[bool, list[str]]:
    """Whether a shell was given `-c`, and its operands: the script, `$0`, `$1` … or a file's name."""
    script = False
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--" or word[:1] not in ("-", "+") or word == "-":
            at += word == "--"
            break
        at += 1
        if word.startswith("--"):
            at += word in ("--rcfile", "--init-file")
            continue
        script = script or "c" in word
        at += word[-1] in "oO"
    return script, list(words[at:])
