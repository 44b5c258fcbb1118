"""What a container runs, as programs with their words, and the options among these.

A thin view on `policies.commands`, which reads shells, wrappers and variables: here interpreters and
launchers are taken off too, so that `tini -- python3 -m mlserver start .` is `mlserver start .`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

import orjson

from policies.commands import OptionSyntax, is_python, parse_options, read
from policies.kube.json import Json, maps, strings, text

_LAUNCHERS: Final = frozenset(
    {"nvidia_entrypoint.sh", "entrypoint.sh", "docker-entrypoint.sh", "dockerd-entrypoint.sh"}
    | {"opentelemetry-instrument", "ddtrace-run", "torchrun", "gosu", "uvx"}
)
"""Programs whose operands are the program to run; their own flags are passed over."""
_RUNNERS: Final = frozenset({"uv", "poetry", "pipenv", "pdm", "hatch", "conda", "mamba", "micromamba"})
"""Programs that run another one after the word `run`."""
_RUNNER_OPTIONS: Final = OptionSyntax(
    frozenset({"-n", "-p", "--name", "--prefix", "--cwd", "--with", "--extra", "--group", "--python"}),
    stop_at_operand=True,
)

Program = tuple[str, ...]
"""The words of a program from its own name (without directories) on."""


class Launch(NamedTuple):
    """How a container is started, as far as its spec says: hashable, so that it can be a key."""

    command: tuple[str, ...]
    args: tuple[str, ...]
    environment: tuple[tuple[str, str | None], ...]
    """The container's own variables; None where the value comes from elsewhere."""
    open: bool
    """Whether `envFrom` may set further variables."""

    @property
    def variables(self) -> dict[str, str | None]:
        return dict(self.environment)

    @property
    def size(self) -> int:
        """Characters, roughly: what it costs to remember it."""
        return sum(map(len, self.command + self.args)) + sum(
            len(value or "") for _, value in self.environment
        )


def launch_of(container: Json) -> Launch:
    """How a container is started."""
    parts = [container.get(key) for key in ("command", "args", "env", "envFrom")]
    try:
        key = orjson.dumps(parts)
    except orjson.JSONEncodeError:  # a number or a character that JSON from an API server can't have
        return _launch(container)
    return _remembered_launch(key) if len(key) <= REMEMBERED else _launch(container)


@lru_cache(maxsize=2048)
def _remembered_launch(key: bytes) -> Launch:
    return _launch(dict(zip(("command", "args", "env", "envFrom"), orjson.loads(key), strict=True)))


def _launch(container: Json) -> Launch:
    return Launch(
        tuple(strings(container, "command")),
        tuple(strings(container, "args")),
        tuple(
            (text(item, "name"), None if item.get("valueFrom") is not None else text(item, "value"))
            for item in maps(container, "env")
        ),
        bool(container.get("envFrom")),
    )


class Started(NamedTuple):
    """The programs a container starts, in reading order."""

    all: tuple[Program, ...]
    sometimes: frozenset[Program]
    """Those of them that it starts in some cases alone, as a script does that serves in the first of a
    group of pods and joins it in the others."""


def programs(launch: Launch) -> tuple[Program, ...]:
    """All programs a container starts; see `started`."""
    return started(launch).all


def started(launch: Launch) -> Started:
    """What a container starts, variables expanded where the container itself sets them.

    What only the running container knows stays as it is spelled (`$PORT`). With no `command` the
    image's entrypoint is not known: the arguments are then read as if they were the program, which is
    what many entrypoints make of them.
    """
    return (_started if launch.size <= REMEMBERED else _started.__wrapped__)(launch)


REMEMBERED: Final = 8192
"""Characters of a launch up to which what was read of it is kept: a cache must not be a way to eat memory."""


@lru_cache(maxsize=2048)
def _started(launch: Launch) -> Started:
    env: list[dict[str, Any]] = [
        {"name": name, "valueFrom": {}} if value is None else {"name": name, "value": value}
        for name, value in launch.environment
    ]
    summary = read((*launch.command, *launch.args), env, [{}] if launch.open else [], static=False)
    found = [(_program(command.argv), command.conditional) for command in summary.commands]
    always = {words for words, conditional in found if not conditional}
    return Started(
        tuple(words for words, _ in found if words),
        frozenset(words for words, conditional in found if conditional) - always,
    )


def option(words: Program, *flags: str) -> str | None:
    """The value of a flag (`--port 8001`, `--port=8001`), the last one given as in argparse; None when
    it is not given, empty when it has no value."""
    found: str | None = None
    for n, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in flags:
            found = value if equals else "".join(words[n + 1 : n + 2])
    return found


def has_option(words: Program, *flags: str) -> bool:
    """Whether one of the flags is given: `--tls` with or without a value, `--http=false` with that one."""
    return any(_is_given(words, flag) for flag in flags)


def _is_given(words: Program, flag: str) -> bool:
    name, equals, value = flag.partition("=")
    if equals:
        return (option(words, name) or "").lower() == value
    return any(word == flag or word.startswith(f"{flag}=") for word in words)


def _program(words: Program) -> Program:
    """The words from the program's own name on, behind interpreters and launchers."""
    rest, launched = words, False
    while rest:
        if rest[0].startswith("-"):  # options of a launcher, or of an entrypoint that isn't named
            if not launched:
                return rest
            rest = rest[1:]
            continue
        head = PurePosixPath(rest[0]).name
        if head in _LAUNCHERS and len(rest) > 1:
            rest, launched = rest[1:], True
        elif head in _RUNNERS and "run" in rest[1:4]:
            rest = rest[rest.index("run") + 1 :]
            rest, launched = rest[parse_options(rest, _RUNNER_OPTIONS).rest :], True
        elif is_python(head):
            rest, launched = _interpreted(rest[1:]), False
        else:
            return (head, *rest[1:])
    return ()


def _interpreted(words: Program) -> Program:
    """What Python runs: the module after `-m`, or the script; nothing for `-c` and standard input."""
    for n, word in enumerate(words):
        if word == "-m":
            return words[n + 1 :]
        if word == "-c":
            return ()
        if not word.startswith("-"):
            return words[n:]
    return ()
