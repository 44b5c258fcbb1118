"""What a container runs, as programs with their words, and the options among these.

A thin view on `policies.commands`, which reads shells, wrappers and variables: here interpreters and
launchers are taken off too, so that `tini -- python3 -m mlserver start .` is `mlserver start .`.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final, NamedTuple

from policies.commands import SHELLS, is_python, parse_options, valued
from policies.containers.commands import command_without_pod, environment_of, environment_written, written_out
from policies.kube.json import strings
from policies.kube.pods import Container

_ENTRYPOINTS: Final = frozenset(
    {"nvidia_entrypoint.sh", "entrypoint.sh", "docker-entrypoint.sh", "dockerd-entrypoint.sh"}
)
"""Scripts of images that run the program that they are given. Options mean that they start their own."""
_LAUNCHERS: Final = frozenset(
    {"opentelemetry-instrument", "ddtrace-run", "gosu", "uvx", "trtllm-llmapi-launch"}
)
"""Programs whose operands are the program to run; their own flags are passed over."""
_TORCHRUN: Final = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
_NODE_FLAGS: Final = ("--node-rank", "--node_rank", "--nnodes")
"""Flags of `torchrun` with which it may be one of several nodes."""
_RUNNERS: Final = frozenset({"uv", "poetry", "pipenv", "pdm", "hatch", "conda", "mamba", "micromamba"})
"""Programs that run another one after the word `run`."""
_RUNNER_OPTIONS: Final = valued(
    "-n -p --name --prefix --cwd --with --extra --group --python", stop_at_operand=True
)
_MOST_RUNNERS: Final = 8
"""Runners that run each other: more is nothing that anybody runs."""

Program = tuple[str, ...]
"""The words of a program from its own name (without directories) on."""


class Launch:
    """How a container is started, as far as its spec shows. Never changed once made."""

    __slots__ = ("_variables", "args", "command", "env", "has_env_from", "key")

    def __init__(self, container: Container) -> None:
        spec = container.spec
        self.command, self.args = tuple(strings(spec, "command")), tuple(strings(spec, "args"))
        self.env, env_from = environment_of(spec)
        """The container's own variables, as JSON."""
        self.has_env_from = bool(env_from)
        """Whether `envFrom` may set further variables."""
        words, environment = written_out(self.command, self.args), environment_written(container)
        self.key = None if words is None or environment is None else b"%b,%b" % (words, environment)
        """A key that is equal for equal launches; None for values that can't be written as JSON."""
        self._variables: dict[str, str | None] | None = None

    @property
    def variables(self) -> dict[str, str | None]:
        """The container's own variables; None where the value comes from elsewhere."""
        found = self._variables
        if found is None:
            found = self._variables = {}
            for item in self.env:
                if isinstance(item, dict):
                    name, value = item.get("name"), item.get("value")
                    plain = value if isinstance(value, str) else ""
                    found[name if isinstance(name, str) else ""] = (
                        plain if item.get("valueFrom") is None else None
                    )
        return found


def launch_of(container: Container) -> Launch:
    """How a container is started."""
    return container.cache.once(Launch, container)


class Started(NamedTuple):
    """The programs a container starts, in reading order."""

    all: tuple[Program, ...]
    conditional: frozenset[Program]
    """Those of them that it starts only in some cases, as a script does that serves in the first of a
    group of pods and joins it in the others."""
    complete: bool = True
    """Whether all programs that it starts could be read; if not, the absence of one is no evidence."""


def programs(container: Container) -> tuple[Program, ...]:
    """All programs a container starts; see `started`."""
    return started(container).all


def started(container: Container) -> Started:
    """What a container starts, variables expanded where the container itself sets them.

    Parts that only the running container knows stay as they are spelled (`$PORT`). With no `command` the
    image's entrypoint is not known: the arguments are then read as if they were the program, which is
    what many entrypoints make of them.
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


def option(words: Program, *flags: str) -> str | None:
    """The value of a flag (`--port 8001`, `--port=8001`), the last one given as in argparse; None when
    it is not given, empty when it has no value."""
    found: str | None = None
    if not flags:
        return None
    for n, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in flags:
            found = value if equals else "".join(words[n + 1 : n + 2])
    return found


def has_option(words: Program, *flags: str) -> bool:
    """Whether one of the flags is given: `--tls` with or without a value, `--http=false` with that one."""
    for flag in flags:  # noqa: SIM110  # without a generator: many flags are asked about each server
        if _is_given(words, flag):
            return True
    return False


def _is_given(words: Program, flag: str) -> bool:
    name, equals, value = flag.partition("=")
    if equals:
        return (option(words, name) or "").lower() == value
    if flag in words:
        return True
    with_value = f"{flag}="
    for word in words:  # noqa: SIM110
        if word.startswith(with_value):
            return True
    return False


def program_of(words: Program) -> Program:
    """The words from the program's own name on, behind interpreters and launchers."""
    at, launched, behind = 0, False, 0
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
            behind += 1
            if behind > _MOST_RUNNERS:
                return ()
            at = words.index("run", at + 1) + 1
            at, launched = at + parse_options(words[at:], _RUNNER_OPTIONS).rest, True
        elif is_python(head):
            at, launched = _interpreted(words, at + 1), False
        else:
            return (head, *words[at + 1 :])
    return ()


def _launches(head: str, rest: Program) -> bool:
    """Whether a program runs what its operands name."""
    if not rest:
        return False
    if head in _ENTRYPOINTS:
        return not rest[0].startswith("-")
    if head in _TORCHRUN:
        return not has_option(rest, *_NODE_FLAGS)
    return head in _LAUNCHERS or head in SHELLS  # the reader has taken a shell's own options off


def _interpreted(words: Program, start: int) -> int:
    """Where in its words what Python runs begins: the module after `-m`, or the script; the end for `-c` and
    standard input."""
    for n in range(start, len(words)):
        if words[n] == "-m":
            return n + 1
        if words[n] == "-c":
            break
        if not words[n].startswith("-"):
            return n
    return len(words)
