"""The programs that a container runs, with their arguments, and the options among these.

`policies.commands` reads shells, wrappers and variables. This module also removes interpreters and launchers,
so that `tini -- python3 -m mlserver start .` is `mlserver start .`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from policies.commands import (
    ACTIVATES,
    DOWNLOADERS,
    LOCAL_PROGRAMS,
    SHELLS,
    Command,
    CommandSummary,
    is_python,
    parse_options,
    valued,
)
from policies.containers.commands import cache_key, command_without_pod, container_command
from policies.core.target import Target
from policies.kube.json import dig
from policies.kube.pods import Container, Role

_ENTRYPOINTS: Final = frozenset(
    {"nvidia_entrypoint.sh", "entrypoint.sh", "docker-entrypoint.sh", "dockerd-entrypoint.sh"}
)
"""Scripts of images that run the program in their arguments. With options instead, they run their own."""
_LAUNCHERS: Final = frozenset(
    {"opentelemetry-instrument", "ddtrace-run", "gosu", "uvx", "trtllm-llmapi-launch"}
)
"""Programs whose operands are the program to run. Their flags are skipped."""
_TORCHRUN: Final = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
_NODE_FLAGS: Final = ("--node-rank", "--node_rank", "--nnodes")
"""Flags of `torchrun` on several nodes."""
_RUNNERS: Final = frozenset({"uv", "poetry", "pipenv", "pdm", "hatch", "conda", "mamba", "micromamba"})
"""Programs that run another one after the word `run`."""
_RUNNER_OPTIONS: Final = valued(
    "-n -p --name --prefix --cwd --with --extra --group --python", stop_at_operand=True
)
_MAX_RUNNERS: Final = 8
"""Maximum number of runners that run each other."""

_SILENT: Final = LOCAL_PROGRAMS | DOWNLOADERS | {"curl", "wget", "nvidia-smi"}
"""Programs that do not listen on a port."""

Program = tuple[str, ...]
"""A program's name without directories, and its arguments."""


class Launch:
    """The fields of a container that decide how it starts. Immutable."""

    def __init__(self, container: Container) -> None:
        typed = container.typed
        self.command, self.args, self.env = typed.command, typed.args, typed.env
        self.has_env_from = bool(typed.env_from)
        """Whether `envFrom` may set further variables."""
        self.key = cache_key(container, self.command, self.args)
        """Equal for equal launches; None for values that JSON cannot contain."""

    @cached_property
    def variables(self) -> dict[str, str | None]:
        """The container's own variables; None for values of `valueFrom`."""
        return {each.name: each.value if each.value_from is None else None for each in self.env}


def launch_of(container: Container) -> Launch:
    """The launch of a container."""
    return container.cache.once(Launch, container)


class Started(NamedTuple):
    """The programs a container starts, in reading order."""

    all: tuple[Program, ...]
    conditional: frozenset[Program]
    """Those that it starts only in some cases: a script may serve in the first pod of a group, and join it in
    the others."""
    complete: bool = True
    """Whether all programs that it starts are known."""


def programs(container: Container) -> tuple[Program, ...]:
    """All programs a container starts; see `started`."""
    return started(container).all


def started(container: Container) -> Started:
    """The programs that a container starts. Variables that the container sets are expanded; others stay as
    they are spelled (`$PORT`).

    Without a `command` the image's entrypoint is unknown, and the arguments are read as the program: many
    entrypoints run their arguments.
    """
    return container.cache.once(_started, container)


def _started(container: Container) -> Started:
    summary = command_without_pod(container)
    found = [(program_of(command.argv), command.conditional) for command in summary.commands]
    always = {words for words, conditional in found if not conditional}
    return Started(
        tuple(words for words, _ in found if words),
        frozenset(words for words, conditional in found if conditional) - always,
        summary.complete,
    )


def variables_of(container: Container, program: Program) -> dict[str, str]:
    """The variables that a script sets for a program only, as in `HF_HOME=/models vllm serve`."""
    found: dict[str, str] = {}
    for command in command_without_pod(container).commands:
        if command.variables and program_of(command.argv) == program:
            found.update(command.variables)
    return found


def sources_variables(words: Program) -> bool:
    """Whether a program of a script reads another script, which may set any variable."""
    # The name of `.` is empty.
    return words[:1] in (("source",), ("",)) and not (len(words) == 2 and words[1].endswith(ACTIVATES))


def runs_alone(container: Container) -> bool:
    """Whether at most one program of a container may listen on a port. The shell that runs a script does not,
    nor do programs such as `mkdir` and `pip` in it."""
    found = started(container)
    return len(found.all) < 2 or (found.complete and sum(map(may_listen, found.all)) < 2)


def may_listen(words: Program) -> bool:
    """Whether it is a program of its own, which no shell and no tool for files is."""
    name = words[0]
    if name in ("source", ""):
        return sources_variables(words)
    return not (words[1:] == () and name in SHELLS) and name not in _SILENT


class ProgramOptions:
    """The options among a program's words, read once."""

    __slots__ = ("_last",)

    def __init__(self, words: Program) -> None:
        self._last: dict[str, tuple[int, str]] = {}
        """The index and the value of the last occurrence of each word before a `=`."""
        following = (*words[1:], "")
        for n, word in enumerate(words):
            name, equals, value = word.partition("=")
            self._last[name] = n, value if equals else following[n]

    def value(self, flags: Iterable[str]) -> str | None:
        """The value of a flag (`--port 8001`, `--port=8001`), the last one as in argparse; None without the
        flag, empty without a value."""
        last, at, found = self._last, -1, None
        for flag in flags:
            if flag in last and last[flag][0] > at:
                at, found = last[flag]
        return found

    def number_at(self, flags: Iterable[str], key: Sequence[str]) -> int:
        """The greatest whole number at a path of keys in the JSON of a flag's value, as in
        `--kv-transfer-config={"kv_connector": …}`. The path may begin at any depth; 0 if there is none."""
        waiting, numbers = list[Any](), [0]
        with suppress(ValueError, RecursionError):
            waiting.append(json.loads(self.value(flags) or ""))
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict):
                if type(found := dig(part, *key)) is int:
                    numbers.append(found)
                waiting += part.values()
            elif isinstance(part, list):
                waiting += part
        return max(numbers)

    def given(self, flags: Iterable[str]) -> bool:
        """Whether one of the flags is given: `--tls` with any value or none, `--http=false` with this
        value."""
        last = self._last
        for flag in flags:
            name, equals, value = flag.partition("=")
            if name in last and (not equals or last[name][1].lower() == value):
                return True
        return False


def option(words: Program, *flags: str) -> str | None:
    """See `ProgramOptions.value`."""
    return ProgramOptions(words).value(flags)


def has_option(words: Program, *flags: str) -> bool:
    """See `ProgramOptions.given`."""
    return ProgramOptions(words).given(flags)


def flags_and_values(words: Program) -> Iterator[tuple[str, str]]:
    """Each word as a flag would be read that takes a value: `--flag=value`, or `--flag` and the next word."""
    for word, following in pairwise((*words, "")):
        name, _, value = word.partition("=")
        yield name, value or following


def joins_ray(program: Program) -> bool:
    """Whether it starts or joins a Ray cluster: `ray`, or vLLM's script `multi-node-serving.sh leader
    --ray_cluster_size=2`."""
    return program[0] == "ray" or "ray_cluster" in " ".join(program)


def program_of(words: Program) -> Program:
    """The program that interpreters, launchers and runners in `words` run."""
    at, launched, runners = 0, False, 0
    while at < len(words):
        if words[at].startswith("-"):  # options of a launcher, or of an entrypoint that isn't named
            if not launched:
                return words[at:]
            at += 1
            continue
        head = words[at] if "/" not in words[at] and words[at] != "." else PurePosixPath(words[at]).name
        if _launches(head, words[at + 1 :]):
            at, launched = at + 1, head not in _ENTRYPOINTS and head not in SHELLS
        elif head in _RUNNERS and "run" in words[at + 1 : at + 4]:
            runners += 1
            if runners > _MAX_RUNNERS:
                return ()
            at = words.index("run", at + 1) + 1
            at, launched = at + parse_options(words[at:], _RUNNER_OPTIONS).rest, True
        elif is_python(head):
            at, launched = _python_target(words, at + 1), False
        else:
            return (head, *words[at + 1 :])
    return ()


def _launches(head: str, rest: Program) -> bool:
    """Whether the operands of a program are the program to run."""
    if not rest:
        return False
    if head in _ENTRYPOINTS:
        return not rest[0].startswith("-")
    if head in _TORCHRUN:
        return not has_option(rest, *_NODE_FLAGS)
    return head in _LAUNCHERS or head in SHELLS  # the reader removes the options of shells


def _python_target(words: Program, start: int) -> int:
    """The index of the module or script that Python runs; the number of words for `-c` and standard input."""
    for n in range(start, len(words)):
        if words[n] == "-m":
            return n + 1
        if words[n] == "-c":
            break
        if not words[n].startswith("-"):
            return n
    return len(words)


_IDLE: Final = frozenset(
    {"sleep", "tail", "true", "echo", "pause", "nvidia-smi", "rocm-smi", "neuron-ls"}
    | {"pip", "pip3", "apt", "apt-get", "export", "cd", "ls", "cat", "env", "set", "trap", "wait", "exit"}
)
"""Programs of idle pods, and programs that prepare for them."""


def only_idles(target: Target) -> bool:
    """Whether every completing pod of a workload only idles. False if a command is unknown."""
    completing = [template for template in target.templates if template.completes]
    return bool(completing) and all(
        idles(container_command(template, container))
        for template in completing
        for container in template.containers(Role.MAIN)
    )


def idles(summary: CommandSummary) -> bool:
    """Whether a command is known and runs nothing but idle programs and single lines of Python. A shell that
    runs a file does what the file says."""
    return bool(summary.commands) and not summary.scripts and programs_of(summary) <= _IDLE


def programs_of(summary: CommandSummary) -> set[str]:
    """The names of the programs that a command runs, without shells and single lines of Python."""
    return {command.name for command in summary.commands if not _is_line(command)} - SHELLS


def _is_line(command: Command) -> bool:
    return is_python(command.name) and "-c" in command.argv
