"""What one simple command does: builtins, shells and interpreters, clients.

The lower half of `reader`: it knows programs and nothing of loops and branches.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace

from policies.commands import reach, values
from policies.commands.expansion import Scope
from policies.commands.hosts import is_url, url_hosts
from policies.commands.model import Command, Host, How, Loop, Reach, ScriptFile
from policies.commands.options import Syntax, parse, seconds
from policies.commands.python_code import Code, read_python
from policies.commands.syntax import Command as Node
from policies.commands.syntax import Script
from policies.commands.wrappers import Unwrapped, unwrap

MAX_WORK = 400_000
"""What reading one command may cost, counted in characters parsed and words run. Functions that call
functions, and scripts inside variables, multiply what is to be read."""

MAX_WORDS = 4096
"""Words of one command that are read."""

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh"})
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


class ProgramReader(ABC):
    """Reads simple commands and gathers what they do."""

    def __init__(self, environment: values.Environment, local_names: Collection[str]) -> None:
        self.environment = environment
        self.scope = Scope(environment, self.substitute)
        self.context = reach.Context(self.scope.lookup, self.scope.variables.get, local_names)
        self.commands: list[Command] = []
        self.loops: list[Loop] = []
        self.scripts: list[ScriptFile] = []
        self.notes: dict[str, None] = {}
        self.functions: dict[str, Node] = {}
        self.work = 0
        self.depth = 0
        self.piped: str | None = None
        """What the command before in a pipeline prints, as far as it is known."""
        self.printed: str | None = None
        """What the last command printed, likewise."""
        self.limits = 0
        """How many `timeout N` enclose what is being read."""
        self.conditions = 0
        """How many conditions what is being read depends on."""

    @abstractmethod
    def substitute(self, script: Script) -> str:
        """Read the commands of a `$(…)`; what is known of its output."""

    @abstractmethod
    def read_text(self, text: str, positional: tuple[str, ...] | None = ()) -> float:
        """Read `text` as a shell script in the present scope. Returns its seconds."""

    @abstractmethod
    def node(self, node: Node) -> float:
        """Read one command of a script. Returns its seconds."""

    def undecidable(self, note: str) -> None:
        self.notes[note] = None

    def affords(self, cost: int) -> bool:
        """Count the cost of a piece of reading; False once it comes to too much."""
        self.work += cost
        if self.work > MAX_WORK:
            self.undecidable("the command is too long to be read whole")
        return self.work <= MAX_WORK

    def record(
        self,
        words: Sequence[str],
        hosts: Sequence[Host] = (),
        timeout: float | None = None,
        calls: tuple[str, ...] = (),
    ) -> float:
        """Note a command. Returns its seconds."""
        argv = tuple(values.show(word) for word in words)
        name = argv[0].rpartition("/")[2].lower() if argv else ""
        self.commands.append(Command(name, argv, tuple(hosts), timeout, calls, self.conditions > 0))
        return timeout or 0.0

    def run(self, words: Sequence[str], given: str | None = None, touched: Sequence[Host] = ()) -> float:
        """Read a simple command. `given`: a here-document or here-string; `touched`: hosts of redirections.

        Returns the seconds that its stated timeouts allow.
        """
        if len(words) > MAX_WORDS:
            self.undecidable("a command has too many words to be read whole")
            words = words[:MAX_WORDS]
        if not self.affords(10 + len(words)):
            return 0.0
        unwrapped = unwrap(words)
        if self.conditions and unwrapped.words and (unwrapped.replaced or _stays(unwrapped.words)):
            self.conditions += 1  # for good: what follows runs only where this branch was not taken
        if not unwrapped.words:
            if touched or words:
                self.record(words[:1] if not touched else (), touched)
            return 0.0
        if touched:
            self.record((), touched)
        with self.scope.branch(leaks=False) if unwrapped.environment else self.scope.unchanged():
            for name, value in unwrapped.environment.items():
                self.scope.assign(name, value)
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
            return self.record(words, [Host("", Reach.UNDECIDABLE, How.ARGUMENT, name)])
        if name in self.functions:
            return self._call(name, arguments)
        if name in _SHELLS:
            return self._shell(words, name, given)
        if _PYTHON.fullmatch(name):
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
            self.undecidable(f"the program {values.show(words[0])} is known only at run time")
        return self.record(words, list(reach.urls_of_unknown_program(name, arguments, self.context)))

    def _call(self, name: str, arguments: Sequence[str]) -> float:
        body = self.functions.pop(name)  # so that a function that calls itself is read once
        before, self.scope.positional = self.scope.positional, tuple(arguments)
        try:
            return self.node(body)
        finally:
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
                    f"{values.show(arguments[0]) if arguments else 'a file'} may set any variable"
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
                parsed = parse(arguments, Syntax(frozenset({"-c", "--command", "-s", "--shell"})))
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
        self.record(words[:1])
        script, operands = _shell_operands(words[1:])
        with self.scope.branch(leaks=False):
            if script:
                return self.read_text(operands[0], tuple(operands[2:])) if operands else 0.0
            if operands and operands[0] != "-":
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
        if not self.affords(4 * len(text)):
            return self.record(words[:1])
        code = read_python(text, self.context)
        if code.undecidable:
            self.undecidable(code.undecidable)
        length = self.record((*words[:1], "-c", text[:200]), code.hosts, code.timeout, code.calls)
        length += self._started(code)
        if code.endless:
            bounded = self.limits > 0
            self.loops.append(Loop("while", bounded, code.sleeps, code.hosts))
        return length

    def _started(self, code: Code) -> float:
        """What Python code gives to a shell or starts itself."""
        length = 0.0
        for command in code.commands[:50]:
            with self.scope.branch(leaks=False):
                length += self.read_text(command) if isinstance(command, str) else self.run(command)
        return length

    def _interpreter(self, words: Sequence[str], name: str) -> float:
        """Code of another language is not parsed: its string literals alone tell URLs."""
        options = _CODE_OPTIONS[name]
        for index, word in enumerate(words[1:], 1):
            if word in options and index + 1 < len(words):
                return self.record(words[:2], self._hosts_of_code(words[index + 1], name))
            if word[:1] != "-":
                self.scripts.append(ScriptFile(values.show(word), name))
                break
        return self.record(words)

    def _hosts_of_code(self, text: str, name: str) -> list[Host]:
        found: list[Host] = []
        for literal in _STRING.finditer(text):
            inside = literal[1] or literal[2] or literal[3] or ""
            if is_url(inside):
                found.extend(url_hosts(inside, name, self.context.local_names))
            elif inside in ("localhost", "127.0.0.1", "::1"):
                found.append(Host(inside, Reach.LOCAL, How.CODE, name, inside))
        if not found and _NETWORK_CODE.search(text):
            found.append(Host("", Reach.UNDECIDABLE, How.CODE, name))
        return [
            replace(
                each, how=How.CODE, reach=Reach.UNDECIDABLE if each.reach is Reach.EXTERNAL else each.reach
            )
            for each in found
        ]


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


def _shell_operands(words: Sequence[str]) -> tuple[bool, list[str]]:
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
