"""Commands of probes whose cost grows with the data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import takewhile
from typing import Final

from policies.commands import Command, CommandSummary
from policies.core.data import entry
from policies.core.finding import Certainty
from policies.core.settings import Field, Model

_INTEGRITY: Final = re.compile(
    r"(?:check|verify|validate)[-_]?(?:integrity|checksums?|hash(?:es)?|weights)|"
    r"integrity[-_]?check|checksum",
    re.IGNORECASE,
)
_WEIGHTS: Final = re.compile(
    r"models?\b|weights|checkpoint|ckpt|\.(?:bin|safetensors|pth?|gguf|onnx|h5|parquet)\b", re.IGNORECASE
)
"""In words about files of gigabytes."""
_CONFIGURATION: Final = re.compile(r"/etc/.*|.*\.(?:conf|cfg|ini|ya?ml|json|toml|properties)")
"""Files of kilobytes."""
_FEW_FILES: Final = re.compile(r"/(?:etc|proc|sys|run|var/run|dev|tmp)(?:/.*)?")
"""Directories that seldom have much in them."""


class HeavyCommands(Model):
    """The content of `heavy_commands.yaml`."""

    checksums: frozenset[str] = Field(description="programs that compute checksums")
    openssl_digests: frozenset[str] = Field(description="subcommands of openssl that compute checksums")
    short_output: frozenset[str] = Field(description="programs with short output, whose checksum is cheap")
    programs: frozenset[str] = Field(description="programs whose cost grows with the data")
    recursive: Mapping[str, str] = Field(description="programs with the letters of their recursive options")
    archivers: frozenset[str] = Field(description="programs that read archives")
    archive_tests: frozenset[str] = Field(description="options with which they read a whole archive")
    jvms: frozenset[str] = Field(description="programs that start a JVM each time")
    frameworks: frozenset[str] = Field(description="Python modules whose import is slow")
    loading_calls: frozenset[str] = Field(description="Python functions that load a model, in any module")
    loading_modules: frozenset[str] = Field(
        description="Python modules whose functions named load, or load and more, load a model"
    )
    calls: frozenset[str] = Field(description="other Python calls that load a model or read many files")
    modules: frozenset[str] = Field(description="Python modules whose functions read all that they are given")
    tree_tests: frozenset[str] = Field(description="tests of find on each file of a tree")


_table = entry(HeavyCommands, "policies.probes", "heavy_commands.yaml")


def heavy_work(summary: CommandSummary) -> tuple[str, Certainty] | None:
    """The work of a command whose cost grows with the data, such as `runs sha256sum`; None without any."""
    return _heavy(summary) or _costly(summary)


def _heavy(summary: CommandSummary) -> tuple[str, Certainty] | None:
    """Checksums, walks through directory trees, and model loading."""
    before: Command | None = None
    for command in summary.commands:
        if what := _checksum(command, before):
            data = any(_WEIGHTS.search(word) for each in summary.commands for word in each.argv)
            return what, Certainty.CERTAIN if data else Certainty.LIKELY
        if what := _heavy_work(command):
            paths = [word for word in command.argv[1:] if word.startswith("/")]
            few = bool(paths) and all(map(_FEW_FILES.fullmatch, paths))
            return what, Certainty.LIKELY if few else Certainty.CERTAIN
        before = command
    for name in (*summary.scripts, *(each.name for each in summary.commands)):
        if _INTEGRITY.search(name):  # only its name tells
            return f"runs {name[:80]}, a check of integrity", Certainty.LIKELY
    return None


def _checksum(command: Command, before: Command | None) -> str | None:
    """A checksum, except of configuration, and of the short output of the command before it in a pipe."""
    arguments = command.argv[1:]
    short = before is not None and (before.name in _table().short_output or _reads_configuration(before))
    if command.name == "openssl" and arguments and arguments[0] in _table().openssl_digests:
        return None if short else f"runs openssl {arguments[0]}"
    if command.name not in _table().checksums or "--version" in arguments:
        return None
    reads_files = any(word[:1] != "-" for word in arguments)
    if _reads_configuration(command) if reads_files else short:
        return None
    return f"runs {command.name}"


def _reads_configuration(command: Command) -> bool:
    """Whether all files that a command names are configuration."""
    files = [word for word in command.argv[1:] if word[:1] != "-"]
    lists = any(word in ("-c", "--check") for word in command.argv)
    return bool(files) and not lists and all(map(_CONFIGURATION.fullmatch, files))


def _heavy_work(command: Command) -> str | None:
    arguments = command.argv[1:]
    if command.name in _table().programs and "--version" not in arguments:
        return f"runs {command.name}"
    if command.name == "find" and _walks_everything(arguments):
        return "walks the whole file system with find"
    letters = _table().recursive.get(command.name, "")
    if letters and any(word == "--recursive" or _has_option(word, letters) for word in arguments):
        return f"walks a directory tree with {command.name}"
    if command.name in _table().archivers and not _table().archive_tests.isdisjoint(arguments):
        return f"reads a whole archive with {command.name}"
    for call in command.calls:
        if _is_heavy_call(call) or _INTEGRITY.search(call):
            return f"calls {call[:60]}"
    return None


def _is_heavy_call(call: str) -> bool:
    """Whether a Python call, such as `torch.jit.load`, loads a model or reads many files."""
    known, (*modules, function) = _table(), call.split(".")
    ends = {function, ".".join((*modules[-1:], function))}  # of saved_model.load
    if call in known.calls or not ends.isdisjoint(known.loading_calls):
        return True
    if modules and modules[0] in known.loading_modules and function.startswith("load"):
        return True
    return len(modules) == 1 and modules[0] in known.modules


def _has_option(word: str, letters: str) -> bool:
    """Whether a word such as `-lR` has one of the letters."""
    return word[:1] == "-" and word[1:2] != "-" and any(letter in word for letter in letters)


def _walks_everything(arguments: tuple[str, ...]) -> bool:
    roots = takewhile(lambda word: word[:1] not in "-(!", arguments)
    return not {"/", "//", "/."}.isdisjoint(roots) and "-maxdepth" not in arguments


def _costly(summary: CommandSummary) -> tuple[str, Certainty] | None:
    """Work whose cost depends on the data. The content of script files is unknown, so they get no finding."""
    for command in summary.commands:
        framework = next(
            (call for call in command.calls if call.partition(".")[0] in _table().frameworks), None
        )
        if framework:
            return f"imports {framework.partition('.')[0]}", Certainty.LIKELY
        if command.name in _table().jvms:
            return f"starts a JVM with {command.name}", Certainty.LIKELY
        words = set(command.argv)
        if command.name == "find" and "-maxdepth" not in words and words & _table().tree_tests:
            return "walks a directory tree with find", Certainty.LIKELY
    return None


def runs(program: str, command: Command) -> bool:
    """Whether a command runs a program, or a program with one argument among others: `pip install`."""
    name, _, argument = program.partition(" ")
    return command.name == name and (not argument or argument in command.argv[1:])
