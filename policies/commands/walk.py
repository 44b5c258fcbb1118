"""A walk through scripts, as a shell would run them: variables, branches, loops and times."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from policies.commands import client_hosts, shell, syntax, values
from policies.commands.durations import looped
from policies.commands.ends import has_alternative, is_bounded, is_endless, last_number, rounds
from policies.commands.expansion import Scope
from policies.commands.hosts import reach_of, split_port
from policies.commands.model import Command, CommandSummary, Host, Reach, ScriptLoop, StepBudget
from policies.commands.programs import AMBIGUOUS, WRITERS

MAX_LISTED = 32
"""Maximum number of words of a `for` loop's list that are read."""

_Found = TypeVar("_Found", Command, ScriptLoop)

_GLOB = re.compile(r"[{*?\[]")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_HOSTS_FILE = "/etc/hosts"


def _uncertain(found: _Found) -> _Found:
    return replace(found, hosts=tuple(map(Host.uncertain, found.hosts)))


def _of_lists(script: syntax.Script) -> list[tuple[bool, bool]]:
    """For each item of a script: whether its list of `&&` and `||` runs in the background, and whether the
    failure of the list ends nothing."""
    found: list[tuple[bool, bool]] = []
    background = forgiven = False
    follows = ""
    for item in reversed(script.items):
        if follows not in ("&&", "||"):
            background = item.background
            forgiven = background or (item.operator == "||" and _always_passes(item.pipeline))
        found.append((background, forgiven))
        follows = item.operator
    return found[::-1]


def _always_passes(pipeline: syntax.Pipeline) -> bool:
    match pipeline.commands:
        case (syntax.Simple(words=(first, *_)),):
            return first.literal in ("true", ":", "echo", "printf")
    return False


def _is_test(pipeline: syntax.Pipeline) -> bool:
    """Whether a pipeline only tests something: `[ … ]`, `[[ … ]]`, `test …`, `… | grep -q …`."""
    node = pipeline.commands[-1]
    if isinstance(node, syntax.Simple):
        return bool(node.words) and node.words[0].literal in ("[", "test", "grep", "egrep")
    return isinstance(node, syntax.Test)


class Walk(ABC):
    """The state of a walk: the shell's variables, and the commands and loops so far.

    Methods that read a part of a script return its seconds.
    """

    def __init__(
        self, environment: values.Environment, local_names: Collection[str], budget: StepBudget
    ) -> None:
        self.environment = environment
        self.budget = budget
        self.scope = Scope(environment, self.substitute, budget)
        self.context = client_hosts.ClientContext(self.scope.lookup, self.scope.set_to, local_names)
        self.commands: list[Command] = []
        self.background = self.forgiven = False
        self.loops: list[ScriptLoop] = []
        self.scripts: list[str] = []
        self.undecidable_parts: dict[str, None] = {}
        self.functions: dict[str, syntax.Command] = {}
        self.depth = 0
        self.pipe_input: str | None = None
        """The output of the command before in a pipeline, if it is known."""
        self.output: str | None = None
        """The output of the last command, if it is known."""
        self.timeouts = 0
        """The number of `timeout N` around the current position."""
        self.conditions = 0
        """The number of conditions on which the current position depends."""
        self.seconds = 0.0
        self.bounds: dict[int, tuple[syntax.Loop, bool, int | None, bool, bool]] = {}
        self.substitution_seconds = 0.0
        """Seconds of the substitutions in the words being expanded."""
        self.writes_hosts_file = False
        """Whether a command writes to /etc/hosts, after which any name may be the pod's own."""

    def start(self, argv: list[str]) -> None:
        for word in argv:
            for name in self.environment.emptied_in(word):
                self.undecidable(f"$({name}) is empty in a probe: the kubelet knows only literal values")
        self.seconds = self.run([self.environment.expand(word) for word in argv])

    def close(self) -> None:
        """Remove the reference cycle with the scope, which would keep its variables until a garbage
        collection."""
        self.scope.substitute = lambda _: ""

    def summary(self, steps: int) -> CommandSummary:
        if self.writes_hosts_file:
            self.undecidable(f"it writes to {_HOSTS_FILE}, so a name may lead back to the pod")
            self.commands = list(map(_uncertain, self.commands))
            self.loops = list(map(_uncertain, self.loops))
        return CommandSummary(
            commands=tuple(self.commands),
            loops=tuple(self.loops),
            scripts=tuple(dict.fromkeys(self.scripts)),
            seconds=self.seconds,
            undecidable=tuple(self.undecidable_parts),
            steps=steps,
        )

    # Scripts

    def read_text(self, text: str, positional: tuple[str, ...] | None = ()) -> float:
        """Read a shell script in the current scope."""
        if values.has_unknown(text[:1]):
            self.undecidable(f"the script {values.show(text[:80])} is known only at run time")
            return 0.0
        with self.scope.parameters(positional):
            return self.nested(partial(self._text, text))

    def nested(self, read: Callable[[], float]) -> float:
        """Read a part of a script one level deeper."""
        if self.depth >= shell.MAX_DEPTH:
            self.undecidable("the script is nested too deep to be read")
            return 0.0
        self.depth += 1
        duration = read()
        self.depth -= 1
        return duration

    def _text(self, text: str) -> float:
        try:
            return self.script(shell.parse(text, self.budget, self.depth))
        except shell.ShellError as error:
            self.undecidable(f"the shell text could not be read: {error}")
            return self._partial(error, text)

    def _partial(self, error: shell.ShellError, text: str) -> float:
        """Read the parsed part of broken text. Its hosts are uncertain: a shell may reject all of it."""
        first = len(self.commands)
        duration = self.script(error.partial)
        self.budget.spend(len(self.commands) - first)
        self.commands[first:] = map(_uncertain, self.commands[first:])
        self.budget.spend(20 + (len(text) - error.position) // 4)
        unread = {word.lower() for word in _WORD.findall(text[error.position :])}
        for client in sorted(unread & client_hosts.client_names() - AMBIGUOUS):
            self.record((client,), [Host("", Reach.UNDECIDABLE, client)])
        return duration

    def script(self, script: syntax.Script) -> float:
        total, tested = 0.0, False
        for item, (background, forgiven) in zip(script.items, _of_lists(script), strict=True):
            conditions, outside = self.conditions, (self.background, self.forgiven)
            self.background, self.forgiven = self.background or background, self.forgiven or forgiven
            if item.operator == "||" or (item.operator == "&&" and tested):
                with self.conditional():
                    total += self.pipeline(item.pipeline)
            elif item.operator == "&&":
                with self.scope.branch():
                    total += self.pipeline(item.pipeline)
            else:
                duration = self.pipeline(item.pipeline)
                total += 0.0 if item.background else duration
            if item.background:  # the commands after it run in any case
                self.conditions = conditions
            tested = _is_test(item.pipeline)
            self.background, self.forgiven = outside
        return total

    @contextmanager
    def conditional(self) -> Iterator[None]:
        """Commands that run only in some cases."""
        self.conditions += 1
        with self.scope.branch():
            yield
        self.conditions -= 1

    def pipeline(self, pipeline: syntax.Pipeline) -> float:
        if len(pipeline.commands) == 1:
            return self.node(pipeline.commands[0])
        longest, output = 0.0, None
        for index, node in enumerate(pipeline.commands):
            self.pipe_input, self.output = output if isinstance(node, syntax.Simple) else None, None
            with self.scope.branch(subshell=index < len(pipeline.commands) - 1):
                longest = max(longest, self.node(node))
            output = self.output if isinstance(node, syntax.Simple) else None
        self.pipe_input = None
        return longest

    def node(self, node: syntax.Command, redirects: tuple[syntax.Redirect, ...] = ()) -> float:
        self.budget.spend(5)
        if isinstance(node, syntax.Simple):
            return self.simple(node, redirects)
        if isinstance(node, syntax.Redirected):
            if hosts := self._devtcp(node.redirects):
                self.record((), hosts)
            return self.node(node.command, (*node.redirects, *redirects))
        return self.nested(partial(self.compound, node))

    def compound(self, node: syntax.Command) -> float:
        match node:
            case syntax.Test(words=words):
                return self._substitutions(words)
            case syntax.Group(body=body, subshell=subshell):
                if not subshell:
                    return self.script(body)
                with self.scope.branch(subshell=True):
                    return self.script(body)
            case syntax.If():
                return self.if_(node)
            case syntax.Case(subject=subject, arms=arms):
                total, longest = self._substitutions((subject,)), 0.0
                for arm in arms:
                    with self.conditional():
                        longest = max(longest, self.script(arm))
                return total + longest
            case syntax.Loop():
                return self.loop(node)
            case syntax.Function(name=name, body=body):
                self.functions[name] = body
        return 0.0

    def if_(self, node: syntax.If) -> float:
        total, longest = 0.0, 0.0
        for condition, body in node.branches:
            total += self.script(condition)
            with self.conditional():
                longest = max(longest, self.script(body))
        if node.otherwise is not None:
            with self.conditional():
                longest = max(longest, self.script(node.otherwise))
        return total + longest

    def loop(self, node: syntax.Loop) -> float:
        first = len(self.commands)
        ends, count, endless, alternative = self._bound(node)
        words = [field for word in node.words or () for field in self.scope.fields(word)]
        before, self.substitution_seconds = self.substitution_seconds, 0.0
        with self.scope.branch():
            if node.variable:
                self.scope.assign(node.variable, self._loop_value(node, words[:MAX_LISTED]))
            once = self.script(node.condition) if node.condition is not None else 0.0
            once += self.script(node.body)
        if self.conditions and endless:
            self.conditions += 1  # until the end, as in `run`
        inside = self.commands[first:]
        self.budget.spend(len(inside))
        self.loops.append(
            ScriptLoop(
                keyword=node.keyword,
                bounded=ends or self.timeouts > 0,
                hosts=tuple(host for command in inside for host in command.hosts),
                count=count,
                background=self.background,
                endless=endless and not (self.background or self.conditions or self.timeouts),
                alternative=alternative,
            )
        )
        return before + looped(once, count, ends=ends)

    def _bound(self, node: syntax.Loop) -> tuple[bool, int | None, bool, bool]:
        """Whether the loop ends, after how many rounds, whether it never ends, and whether one of several
        commands ends it. Functions may run it many times."""
        known = self.bounds.get(id(node))
        if known is None:
            ends = is_bounded(node, self.budget)
            # The node is kept, so that no other node gets its id.
            count = rounds(node, self.budget) if ends else None
            endless, alternative = is_endless(node, self.budget), has_alternative(node, self.budget)
            known = self.bounds[id(node)] = (node, ends, count, endless, alternative)
        return known[1:]

    def _loop_value(self, node: syntax.Loop, words: list[str]) -> str:
        """The last word of a `for` loop's list if all of them are numbers or hosts with the same reach.

        The last, because a script that waits for each pod of a StatefulSet waits for the last one too.
        """
        if number := last_number((node.words or ())[:MAX_LISTED], self.budget):
            return number
        if not words or any(_GLOB.search(word) for word in words):
            return values.unknown(node.variable)
        reaches = {reach_of(split_port(word)[0], self.context.local_names) for word in words}
        return words[-1] if len(reaches) == 1 else values.unknown(node.variable)

    def substitute(self, script: syntax.Script) -> str:
        """Read the commands of a `$(…)`. Returns its output if that is the pod's own name or address."""
        outer = self.substitution_seconds
        self.substitution_seconds = 0.0
        first = len(self.commands)
        self.depth += 1
        with self.scope.branch(subshell=True):
            duration = self.script(script) if self.depth <= shell.MAX_DEPTH else 0.0
        self.depth -= 1
        self.substitution_seconds = outer + duration
        if len(self.commands) == first:
            return values.unknown("(command)")
        source = self.commands[first]
        if source.name == "hostname" and "-f" not in source.argv and "-d" not in source.argv:
            return values.own("(hostname)")
        if source.argv[:2] in (("cat", "/etc/hostname"), ("uname", "-n"), ("hostname", "-f")):
            return values.own("(hostname)")
        return values.unknown(f"({source.name or 'command'})")

    def _substitutions(self, words: Sequence[syntax.Word]) -> float:
        """Read the commands in the substitutions of words."""
        self.budget.spend(len(words))
        for word in words:
            if any(not isinstance(part, syntax.Literal | syntax.Arithmetic) for part in word.parts):
                self.scope.fields(word)
        duration, self.substitution_seconds = self.substitution_seconds, 0.0
        return duration

    # Simple commands

    def simple(self, node: syntax.Simple, outer: tuple[syntax.Redirect, ...]) -> float:
        before, self.substitution_seconds = self.substitution_seconds, 0.0
        words = [field for word in node.words for field in self.scope.fields(word)]
        assigned = {each.name: self.scope.text(each.value) for each in node.assignments}
        hosts = self._devtcp(node.redirects)
        pipe_input, self.pipe_input = self.pipe_input, None
        stdin = self._stdin((*outer, *node.redirects), pipe_input) if words else None
        duration, self.substitution_seconds = self.substitution_seconds, before
        if words and assigned:  # for this command only
            with self.scope.assigned(assigned):
                return duration + self.run(words, stdin, hosts)
        for name, value in assigned.items():
            self.scope.assign(name, value)
        return duration + self.run(words, stdin, hosts)

    def _devtcp(self, redirects: Sequence[syntax.Redirect]) -> list[Host]:
        """The hosts of redirections from and to `/dev/tcp/host/port`."""
        found: list[Host] = []
        for redirect in redirects:
            self.budget.spend(1)
            if redirect.operator.startswith("<<"):
                continue
            path = self.scope.text(redirect.target)
            self.writes_hosts_file |= path == _HOSTS_FILE and ">" in redirect.operator
            if path.startswith("/dev/") and (host := client_hosts.devtcp(path, self.context)):
                self.budget.spend(4)
                found.append(host)
        return found

    def _stdin(self, redirects: Sequence[syntax.Redirect], pipe_input: str | None) -> str | None:
        """The text of the last here-document or here-string, else of the pipe."""
        for redirect in reversed(redirects):
            if redirect.operator in ("<<", "<<-", "<<<"):
                return self.scope.text(redirect.target)
        return pipe_input

    # Findings

    def undecidable(self, sentence: str) -> None:
        self.undecidable_parts[sentence] = None

    def record(
        self,
        words: Sequence[str],
        hosts: Sequence[Host] = (),
        timeout: float | None = None,
        calls: tuple[str, ...] = (),
    ) -> float:
        """Add a command to the summary."""
        own = self.scope.of_command
        self.budget.spend(3 + len(words) + 4 * len(hosts) + len(own))
        argv = tuple(map(values.show, words))
        name = argv[0].rpartition("/")[2].lower() if argv else ""
        self.writes_hosts_file |= name in WRITERS and _HOSTS_FILE in argv
        conditional = self.conditions > 0
        variables = tuple((key, values.show(value)) for key, value in own.items())
        self.commands.append(
            Command(name, argv, tuple(hosts), timeout, calls, conditional, self.forgiven, variables)
        )
        return timeout or 0.0

    @abstractmethod
    def run(self, words: Sequence[str], stdin: str | None = None, hosts: Sequence[Host] = ()) -> float:
        """Read a simple command after expansion. `stdin`: its input, if it is known; `hosts`: those of its
        redirections."""
