"""Programs that run another program: which of their options take a value, and where the other one begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policies.commands.durations import seconds
from policies.commands.options import OptionSyntax, Parsed, parse_options, valued


@dataclass(frozen=True, slots=True)
class Wrapper:
    """`syntax` of the options before the wrapped program, and the number of operands before it."""

    syntax: OptionSyntax
    operands: int = 0


def _wrapper(options: str = "", operands: int = 0) -> Wrapper:
    return Wrapper(valued(options, stop_at_operand=True), operands)


WRAPPERS: dict[str, Wrapper] = {
    "exec": _wrapper("-a"),
    "command": _wrapper(),
    "builtin": _wrapper(),
    "nohup": _wrapper(),
    "time": _wrapper("-f -o --format --output"),
    "nice": _wrapper("-n --adjustment"),
    "ionice": _wrapper("-c -n -p --class --classdata"),
    "stdbuf": _wrapper("-i -o -e --input --output --error"),
    "setsid": _wrapper(),
    "sudo": _wrapper("-u -g -h -p -C -R -T -D --user --group"),
    "doas": _wrapper("-u -C"),
    "gosu": _wrapper(operands=1),
    "su-exec": _wrapper(operands=1),
    "setpriv": _wrapper("--reuid --regid --groups"),
    "runuser": _wrapper("-u -g -G --user --group"),
    "chroot": _wrapper("--userspec --groups", operands=1),
    "tini": _wrapper("-p -e"),
    "dumb-init": _wrapper("--rewrite -r"),
    "catatonit": _wrapper(),
    "taskset": _wrapper(operands=1),
    "numactl": _wrapper("-N -m -C -l -i -p"),
    "flock": _wrapper("-w -E --timeout --wait", operands=1),
    "xargs": _wrapper("-n -I -P -L -d -a -E -s --max-args --max-procs --delimiter --arg-file"),
    "busybox": _wrapper(),
    "toybox": _wrapper(),
    "unbuffer": _wrapper(),
    "script": _wrapper(),
    "env": _wrapper("-u -C -S --unset --chdir --split-string"),
    "timeout": _wrapper("-k -s -t --kill-after --signal", operands=1),
    "gtimeout": _wrapper("-k -s --kill-after --signal", operands=1),
    "argoexec": _wrapper("--loglevel --log-format --gloglevel"),
}

_STEP = "/tekton/bin/entrypoint"
"""What Tekton starts in each step, with the step's own program as its argument."""
_CHAIN_LIMIT = 20


@dataclass(slots=True)
class Unwrapped:
    """The rest after the wrappers: the program's words, and the environment that the wrappers set for it."""

    words: list[str]
    environment: dict[str, str]
    limit: float | None = None
    """The tightest `timeout N` around it, in seconds."""
    arguments_from_input: bool = False
    """xargs adds arguments from its input."""
    replaced: bool = False
    """`exec`: no command after it runs."""


def unwrap(words: Sequence[str]) -> Unwrapped:
    """Take `timeout 5 env A=b nohup …` off a simple command. Linear; never raises."""
    unwrapped = Unwrapped(list(words), {})
    for _ in range(_CHAIN_LIMIT):
        if not unwrapped.words:
            break
        if unwrapped.words[0] == _STEP:
            unwrapped.words = _step(unwrapped.words)
        name = unwrapped.words[0].rpartition("/")[2].lower()
        wrapper = WRAPPERS.get(name)
        if wrapper is None:
            break
        if name == "argoexec" and unwrapped.words[1:2] == ["emissary"]:  # in pods of Argo Workflows
            del unwrapped.words[1]
        elif name == "argoexec":
            break
        parsed = parse_options(unwrapped.words[1:], wrapper.syntax)
        if name == "command" and parsed.has("-v", "-V"):  # asks whether a program is there, and runs nothing
            break
        rest = unwrapped.words[1 + parsed.rest :]
        count = wrapper.operands
        if name.endswith("timeout"):
            count = _limit(unwrapped, parsed, rest)
        elif name == "env":
            rest = _environment(unwrapped, parsed, rest)
        elif name == "xargs":
            unwrapped.arguments_from_input = True
        elif name == "exec":
            unwrapped.replaced = True
        unwrapped.words = rest[count:]
    return unwrapped


def _step(words: list[str]) -> list[str]:
    """The program of a Tekton step: `entrypoint -wait_file f -entrypoint python -- train.py`."""
    end = words.index("--") if "--" in words else len(words)
    at = words.index("-entrypoint", 0, end) + 1 if "-entrypoint" in words[:end] else end
    return [words[at], *words[end + 1 :]] if at < end else words


def _limit(unwrapped: Unwrapped, parsed: Parsed, rest: list[str]) -> int:
    """Note a timeout; the number of operands before the program (busybox once wrote `-t 5`)."""
    old_form = parsed.value(("-t",))
    limit = seconds(old_form or next(iter(rest), ""))
    if limit:
        limit += seconds(parsed.value(("-k", "--kill-after"))) or 0.0
        unwrapped.limit = limit if unwrapped.limit is None else min(limit, unwrapped.limit)
    return 0 if old_form else 1


def _environment(unwrapped: Unwrapped, parsed: Parsed, rest: list[str]) -> list[str]:
    at = 0
    while at < len(rest) and "=" in rest[at].split("/", 1)[0]:
        name, _, value = rest[at].partition("=")
        unwrapped.environment[name] = value
        at += 1
    split = parsed.value(("-S", "--split-string"))
    return [*split.split(), *rest[at:]]
