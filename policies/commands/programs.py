"""Programs that the reader handles by name, and the arguments of shells."""

from __future__ import annotations

import re
from collections.abc import Sequence

SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh"})
CODE_OPTIONS = {
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
"""Interpreters other than Python, and their options with code."""
SCRIPT_SUFFIXES = (".sh", ".bash", ".py", ".pl", ".rb", ".js", ".php", ".lua")

TEXT_PROGRAMS = frozenset(
    {"echo", "printf", "logger", "grep", "egrep", "fgrep", "sed", "awk", "gawk", "jq", "yq", "cat"}
    | {"tee", "test", "[", "[[", ":", "true", "false", "head", "tail", "cut", "tr", "sort", "wc"}
    | {"date", "ls", "find", "touch", "rm", "mkdir", "cp", "mv", "stat", "pgrep", "ps", "kill"}
    | {"basename", "dirname", "seq", "expr", "xxd", "od", "base64", "cd", "unset", "shift", "trap"}
    | {"wait", "exit", "return", "break", "continue", "alias"}
)
"""Programs that only handle text or files: they do not reach a URL in their arguments."""
DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})
"""Builtins that assign variables."""
ACTIVATES = "/activate"
"""The end of a script that only sets variables, those of a Python environment."""
WRITERS = frozenset({"tee", "sed", "cp", "mv", "install", "dd", "sponge", "ed", "ln"})
"""Programs that write the files among their arguments."""
LOCAL_PROGRAMS = TEXT_PROGRAMS | DECLARING | WRITERS | {"set", "sleep", "ulimit", "umask", "chmod", "chown"}
"""Programs that only handle text, files, variables or processes: they do not listen on a port."""
DOWNLOADERS = frozenset(
    {"pip", "pip3", "apt", "apt-get", "apk", "hf", "huggingface-cli"}
    | {"aws", "gsutil", "azcopy", "s5cmd", "mc"}
)
"""Programs that need the network and do not listen on a port."""
AMBIGUOUS = frozenset(
    {"host", "http", "https", "ray", "mc", "hf", "az", "ab", "nats", "influx", "consul", "vault"}
)
"""Clients whose names are also ordinary words: in text that cannot be parsed they do not count."""
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?", re.ASCII)


def is_python(program: str) -> bool:
    """Whether a program is a Python interpreter: `python3.12`, `pypy`."""
    return _PYTHON.fullmatch(program) is not None


def shell_operands(words: Sequence[str]) -> tuple[bool, list[str]]:
    """Whether a shell has the option `-c`, and its operands: the script, `$0`, `$1` … or a file."""
    has_script = False
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
        has_script = has_script or "c" in word
        at += word[-1] in "oO"
    return has_script, list(words[at:])
