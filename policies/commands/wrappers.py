"""Programs that run another program, such as `timeout` and `env`: where the other program's words begin."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from policies.commands.durations import seconds
from policies.commands.options import Parsed, parse_options, valued

_NO_OPTIONS = (
    *(
        "builtin",
        "busybox",
        "catatonit",
        "command",
        "gosu",
        "nohup",
        "script",
        "setsid",
        "su-exec",
        "taskset",
    ),
    *("toybox", "unbuffer"),
)
_OPTIONS = {
    **dict.fromkeys(_NO_OPTIONS, ""),
    "argoexec": "--loglevel --log-format --gloglevel",
    "chroot": "--userspec --groups",
    "doas": "-u -C",
    "dumb-init": "--rewrite -r",
    "env": "-u -C -S --unset --chdir --split-string",
    "exec": "-a",
    "flock": "-w -E --timeout --wait",
    "gtimeout": "-k -s --kill-after --signal",
    "ionice": "-c -n -p --class --classdata",
    "nice": "-n --adjustment",
    "numactl": "-N -m -C -l -i -p",
    "runuser": "-u -g -G --user --group",
    "setpriv": "--reuid --regid --groups",
    "stdbuf": "-i -o -e --input --output --error",
    "sudo": "-u -g -h -p -C -R -T -D --user --group",
    "time": "-f -o --format --output",
    "timeout": "-k -s -t --kill-after --signal",
    "tini": "-p -e",
    "xargs": "-n -I -P -L -d -a -E -s --max-args --max-procs --delimiter --arg-file",
}
"""The options with a value of each wrapper."""
_WRAPPERS = {name: valued(options, stop_at_operand=True) for name, options in _OPTIONS.items()}
_OPERANDS = {"gosu": 1, "su-exec": 1, "chroot": 1, "taskset": 1, "flock": 1}
"""The number of operands before the wrapped program."""
_TEKTON_ENTRYPOINT = "/tekton/bin/entrypoint"
"""The program that Tekton runs in each step, with the step's own program as its argument."""
_AIRFLOW_ENTRYPOINT = "/entrypoint"
"""The program of apache/airflow's image, which runs `python …` and `bash …` as they are."""
_MAX_WRAPPERS = 20


class Unwrapped(Struct):
    """The words of the wrapped program, and the environment that the wrappers set for it."""

    words: list[str]
    environment: dict[str, str]
    limit: float | None = None
    """The shortest `timeout N` around it, in seconds."""
    arguments_from_input: bool = False
    """xargs adds arguments from its input."""
    replaces_shell: bool = False
    """`exec`: the commands after it do not run."""


def unwrap(words: Sequence[str]) -> Unwrapped:
    """Remove wrappers (`timeout 5 env A=b nohup …`) from a simple command. Linear; never raises."""
    unwrapped = Unwrapped(list(words), {})
    for _ in range(_MAX_WRAPPERS):
        if not unwrapped.words:
            break
        if unwrapped.words[0] == _TEKTON_ENTRYPOINT:
            unwrapped.words = _tekton_step(unwrapped.words)
        elif unwrapped.words[0] == _AIRFLOW_ENTRYPOINT and unwrapped.words[1:2] in (["python"], ["bash"]):
            del unwrapped.words[0]
        name = unwrapped.words[0].rpartition("/")[2].lower()
        options = _WRAPPERS.get(name)
        if options is None:
            break
        if name == "argoexec" and unwrapped.words[1:2] == ["emissary"]:  # in pods of Argo Workflows
            del unwrapped.words[1]
        elif name == "argoexec":
            break
        parsed = parse_options(unwrapped.words[1:], options)
        if name == "command" and parsed.has("-v", "-V"):  # only checks whether a program exists
            break
        rest = unwrapped.words[1 + parsed.rest :]
        operands = _OPERANDS.get(name, 0)
        if name.endswith("timeout"):
            operands = _limit(unwrapped, parsed, rest)
        elif name == "env":
            rest = _environment(unwrapped, parsed, rest)
        elif name == "xargs":
            unwrapped.arguments_from_input = True
        elif name == "exec":
            unwrapped.replaces_shell = True
        unwrapped.words = rest[operands:]
    return unwrapped


def _tekton_step(words: list[str]) -> list[str]:
    """`entrypoint -wait_file f -entrypoint python -- train.py` -> `python train.py`."""
    end = words.index("--") if "--" in words else len(words)
    at = words.index("-entrypoint", 0, end) + 1 if "-entrypoint" in words[:end] else end
    return [words[at], *words[end + 1 :]] if at < end else words


def _limit(unwrapped: Unwrapped, parsed: Parsed, rest: list[str]) -> int:
    """Record a timeout. Returns the number of operands before the program: 0 for `-t 5` of old busybox."""
    old_form = parsed.value(("-t",))
    limit = seconds(old_form or next(iter(rest), ""))
    if limit:
        limit += seconds(parsed.value(("-k", "--kill-after"))) or 0.0
        unwrapped.limit = limit if unwrapped.limit is None else min(limit, unwrapped.limit)
    return 0 if old_form else 1


def _environment(unwrapped: Unwrapped, parsed: Parsed, rest: list[str]) -> list[str]:
    """Record the variables of `env`. Returns the words after them."""
    at = 0
    while at < len(rest) and "=" in rest[at].split("/", 1)[0]:
        name, _, value = rest[at].partition("=")
        unwrapped.environment[name] = value
        at += 1
    split = parsed.value(("-S", "--split-string"))
    return [*split.split(), *rest[at:]]
