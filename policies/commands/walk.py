"""A walk through a script's syntax tree, as a shell would run it: its variables, branches, loops and times.

Which program a simple command runs is for `run` to read.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from policies.commands import reach, shell, values
from policies.commands.budget import Budget
from policies.commands.durations import looped
from policies.commands.ends import is_bounded, is_endless, last_number, rounds
from policies.commands.expansion import Scope
from policies.commands.hosts import reach_of, split_port
from policies.commands.model import Command, CommandSummary, Host, Loop, Reach
from policies.commands.programs import AMBIGUOUS, WRITERS
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

MAX_LISTED = 32
"""Words of a `for` loop's list that are looked at."""

_Found = TypeVar("_Found", Command, Loop)

_PATTERN = re.compile(r"[{*?\[]")
_MENTIONED = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_HOSTS_FILE = "/etc/hosts"


def _doubted(found: _Found) -> _Found:
    return replace(found, hosts=tuple(host.doubted() for host in found.hosts))


def _tests(pipeline: Pipeline) -> bool:
    """Whether a pipeline only tests something: `[ … ]`, `[[ … ]]`, `test …`, `… | grep -q …`."""
    node = pipeline.commands[-1]
    if isinstance(node, Simple):
        return bool(node.words) and node.words[0].literal in ("[", "test", "grep", "egrep")
    return isinstance(node, Test)


class Walk(ABC):
    """A walk through scripts, as a shell would run them: known variables, and findings so far."""

    def __init__(self, environment: values.Environment, local_names: Collection[str], budget: Budget) -> None:
        self.environment = environment
        self.budget = budget
        self.scope = Scope(environment, self.substitute, budget)
        self.context = reach.Context(self.scope.lookup, self.scope.variables.get, local_names)
        self.commands: list[Command] = []
        self.loops: list[Loop] = []
        self.scripts: list[str] = []
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
            self.commands = list(map(_doubted, self.commands))
            self.loops = list(map(_doubted, self.loops))
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
        self.commands[first:] = map(_doubted, self.commands[first:])
        self.budget.spend(20 + (len(text) - error.position) // 4)
        unread = {word.lower() for word in _MENTIONED.findall(text[error.position :])}
        for client in sorted(unread & reach.names() - AMBIGUOUS):
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
        return around + looped(once, count, ends=ends)

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

    # Findings

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
        self.writes_hosts |= name in WRITERS and _HOSTS_FILE in argv
        self.commands.append(Command(name, argv, tuple(hosts), timeout, calls, self.conditions > 0))
        return timeout or 0.0

    @abstractmethod
    def run(self, words: Sequence[str], given: str | None = None, touched: Sequence[Host] = ()) -> float:
        """Read a simple command. `given`: a here-document or here-string; `touched`: hosts of redirections.

        Returns the seconds that its stated timeouts allow.
        """


def _over(_: Script) -> str:
    return ""
