"""From a command's argv and its container's environment to a `CommandSummary`.

The reader walks the syntax tree as a shell would run it, keeping the variables it knows, and applies
the client table to every simple command. It runs nothing, raises nothing on any input, and is bounded:
text beyond what Linux can execute isn't read, nesting and the number of commands have limits, and what
lies beyond a limit is undecidable.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from policies.commands import loops, reach, shell, values
from policies.commands.hosts import reach_of, split_port
from policies.commands.model import CommandSummary, Host, How, Loop, Reach
from policies.commands.running import MAX_WORDS, ProgramReader
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

MAX_TEXT = 131_072
"""Longest single argument that Linux executes (MAX_ARG_STRLEN, 32 pages); more is an error at exec."""

MAX_LISTED = 32
"""Words of a `for` loop's list that are looked at."""

_PATTERN = re.compile(r"[{*?\[]")
_MENTIONED = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_AMBIGUOUS = frozenset(
    {"host", "http", "https", "ray", "mc", "hf", "az", "ab", "nats", "influx", "consul", "vault"}
)
"""Client names that are also ordinary words: in text that isn't shell they tell nothing."""


def read(
    argv: Sequence[Any],
    env: Sequence[Any] = (),
    env_from: Sequence[Any] = (),
    *,
    static: bool = True,
    host_network: bool = False,
    local_names: Collection[str] = (),
) -> CommandSummary:
    """What a command reaches, runs and waits for.

    `argv`: an exec probe's `command`, or a container's `command` + `args`. `env`, `env_from`: the
    container's own, as JSON. `static`: kubelet expands `$(VAR)` from literal values alone, as it does in
    probes and lifecycle hooks; False for a container's own command. `host_network`: the node's address
    is the pod's. `local_names`: further host names of the pod (spec.hostname, hostAliases on loopback).

    Never raises, whatever the input: what can't be read is undecidable.
    """
    environment = values.Environment(env, env_from, static=static, host_network=host_network)
    reader = _Reader(environment, frozenset(name.lower() for name in local_names))
    try:
        reader.start([word for word in argv if isinstance(word, str)])
    except RecursionError:  # the limits on nesting make this unreachable from a shallow stack
        reader.undecidable("the command is nested too deep to be read")
    return reader.summary()


def _doubted(host: Host) -> Host:
    return replace(host, reach=Reach.UNDECIDABLE) if host.reach is Reach.EXTERNAL else host


def _width(node: Node) -> int:
    """How many words of its own a command has."""
    return len(node.words or ()) if isinstance(node, Simple | Test | LoopNode) else 0


def _tests(pipeline: Pipeline) -> bool:
    """Whether a pipeline only tests something: `[ … ]`, `[[ … ]]`, `test …`, `… | grep -q …`."""
    node = pipeline.commands[-1]
    if isinstance(node, Simple):
        return bool(node.words) and node.words[0].literal in ("[", "test", "grep", "egrep")
    return isinstance(node, Test)


class _Reader(ProgramReader):
    def __init__(self, environment: values.Environment, local_names: Collection[str]) -> None:
        super().__init__(environment, local_names)
        self.seconds = 0.0
        self.ends: dict[int, tuple[LoopNode, bool, int | None]] = {}
        self.substituted = 0.0
        """Seconds of the substitutions in the words being expanded."""

    def start(self, argv: list[str]) -> None:
        cut = [word[:MAX_TEXT] for word in argv[: MAX_WORDS + 1]]
        for word in cut:
            for name in self.environment.emptied_in(word):
                self.undecidable(f"$({name}) is empty in a probe: kubelet knows only literal values there")
        self.seconds = self.run([self.environment.expand(word) for word in cut])
        if any(len(word) > MAX_TEXT for word in argv):
            self.undecidable("an argument is longer than Linux can execute")

    def summary(self) -> CommandSummary:
        return CommandSummary(
            commands=tuple(self.commands),
            loops=tuple(self.loops),
            scripts=tuple(dict.fromkeys(self.scripts)),
            seconds=self.seconds,
            undecidable=tuple(self.notes),
        )

    # Scripts

    def read_text(self, text: str, positional: tuple[str, ...] | None = ()) -> float:
        """Read `text` as a shell script in the present scope. Returns its seconds."""
        if values.has_unknown(text[:1]):
            self.undecidable(f"the script {values.show(text[:80])} is known only at run time")
            return 0.0
        if not self.affords(len(text)):
            return 0.0
        if self.depth >= shell.MAX_DEPTH:
            self.undecidable("the script is nested too deep to be read")
            return 0.0
        before, self.scope.positional = self.scope.positional, positional
        self.depth += 1
        try:
            script = shell.parse(text[:MAX_TEXT], self.depth)
            return self.script(script)
        except shell.ShellError as error:
            self.undecidable(f"the shell text could not be read: {error}")
            return self._partial(error, text[:MAX_TEXT])
        finally:
            self.depth -= 1
            self.scope.positional = before

    def _partial(self, error: shell.ShellError, text: str) -> float:
        """Read what can be read of broken text. What it reaches is a guess: a shell may refuse all of it."""
        first = len(self.commands)
        length = self.script(error.partial)
        for index, command in enumerate(self.commands[first:], first):
            self.commands[index] = replace(command, hosts=tuple(map(_doubted, command.hosts)))
        unread = {word.lower() for word in _MENTIONED.findall(text[error.position :])}
        for client in sorted(unread & reach.NAMES - _AMBIGUOUS):
            self.record((client,), [Host("", Reach.UNDECIDABLE, How.ARGUMENT, client)])
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
        """Commands that run in some cases alone."""
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
        if not self.affords(10 + _width(node)):
            return 0.0
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
        if self.conditions and loops.is_endless(node):
            self.conditions += 1  # for good, as in `run`
        inside = self.commands[first:]
        self.loops.append(
            Loop(
                keyword=node.keyword,
                bounded=ends or self.limits > 0,
                sleeps=any(command.name in ("sleep", "usleep") for command in inside),
                hosts=tuple(host for command in inside for host in command.hosts),
                count=count,
            )
        )
        if not ends and once > 0:
            return math.inf
        return around + (once * count if count is not None and once > 0 else once)

    def _end_of(self, node: LoopNode) -> tuple[bool, int | None]:
        """Whether the loop ends, and after how many rounds; told once, however often a function runs it."""
        known = self.ends.get(id(node))
        if known is None:
            ends = loops.is_bounded(node)
            # The node is kept with the answer: its id must not be another's meanwhile.
            known = self.ends[id(node)] = (node, ends, loops.count(node) if ends else None)
        return known[1:]

    def _loop_value(self, node: LoopNode, words: list[str]) -> str:
        """The last word of a `for` loop's list where it tells as much as any: numbers, or hosts alike.

        The last, because a script that goes through the pods of a StatefulSet waits for the last one too.
        """
        if number := loops.last_number((node.words or ())[:MAX_LISTED]):
            return number
        if not words or any(_PATTERN.search(word) for word in words):
            return values.unknown(node.variable)
        reaches = {reach_of(split_port(word)[0], self.context.local_names) for word in words}
        return words[-1] if len(reaches) == 1 else values.unknown(node.variable)

    def substitute(self, script: Script) -> str:
        """Read the commands of a `$(…)`; what is known of its output: the pod's own name or address."""
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
        inside = self.commands[first:]
        if not inside:
            return values.unknown("(command)")
        source = inside[0]
        if source.name == "hostname" and "-f" not in source.argv and "-d" not in source.argv:
            return values.own("(hostname)")
        if source.argv[:2] in (("cat", "/etc/hostname"), ("uname", "-n"), ("hostname", "-f")):
            return values.own("(hostname)")
        return values.unknown(f"({source.name or 'command'})")

    def _expanded_only(self, words: Sequence[Word]) -> float:
        """Expand words for the sake of the substitutions inside them. Returns their seconds."""
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
        with self.scope.branch(leaks=False) if assigned else self.scope.unchanged():
            for name, value in assigned.items():
                self.scope.assign(name, value)
            return length + self.run(words, given, touched)

    def _devtcp(self, redirects: Sequence[Redirect]) -> list[Host]:
        """The hosts that redirections from and to `/dev/tcp/host/port` reach."""
        found: list[Host] = []
        for redirect in redirects:
            if redirect.operator.startswith("<<"):
                continue
            path = self.scope.text(redirect.target)
            if path.startswith("/dev/") and (touched := reach.devtcp(path, self.context)):
                found.append(touched)
        return found

    def _input(self, redirects: Sequence[Redirect], piped: str | None) -> str | None:
        """The text of the last here-document or here-string, else what comes through the pipe."""
        for redirect in reversed(redirects):
            if redirect.operator in ("<<", "<<-", "<<<"):
                return self.scope.text(redirect.target)
        return piped
