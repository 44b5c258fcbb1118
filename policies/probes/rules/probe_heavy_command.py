"""probe-heavy-command: probe commands whose cost grows with the data."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Final

from policies.commands import Command, CommandSummary
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, Target, rule
from policies.probes.probe import LIVENESS, READINESS, STARTUP, probes

_CHECKSUMS: Final = frozenset(
    {"md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "b2sum", "b3sum", "xxhsum"}
    | {"cksum", "sum", "shasum", "md5"}
)

_OPENSSL_DIGESTS: Final = frozenset({"dgst", "md5", "sha1", "sha256", "sha512"})

_SHORT_OUTPUT: Final = frozenset({"echo", "printf", "date", "hostname", "curl", "wget", "jq", "redis-cli"})
"""Programs with short output, whose checksum is cheap."""
_HEAVY_PROGRAMS: Final = frozenset(
    {"du", "ncdu", "tree", "updatedb", "fsck", "fio", "stress", "stress-ng"}
    | {"pg_dump", "pg_dumpall", "pg_amcheck", "mysqldump", "mysqlcheck", "mongodump", "fdupes"}
)

_ARCHIVERS: Final = frozenset({"gzip", "bzip2", "xz", "zstd", "unzip", "tar", "pigz"})

_ARCHIVE_TESTS: Final = frozenset(
    {"-t", "--test", "--list", "-tf", "-tzf", "-tvf", "tf", "tzf", "tvf", "-tq"}
)

_INTEGRITY: Final = re.compile(
    r"(?:check|verify|validate)[-_]?(?:integrity|checksums?|hash(?:es)?|weights)|"
    r"integrity[-_]?check|checksum",
    re.IGNORECASE,
)

_LOADING_CALLS: Final = re.compile(
    r"(?:^|\.)(?:from_pretrained|load_model|load_state_dict|InferenceSession|SentenceTransformer|load_file|"
    r"safe_open|saved_model\.load|snapshot_download)$|^(?:torch|joblib|pickle|keras|mlflow)\.(?:\w+\.)*load\w*$|"
    r"^hashlib\.\w+$|^transformers\.pipeline$|^vllm\.LLM$|^os\.walk$"
)

_FRAMEWORKS: Final = frozenset(
    {"torch", "tensorflow", "transformers", "vllm", "jax", "keras", "onnxruntime", "diffusers", "xgboost"}
)

_CONSEQUENCE: Final = {
    Certainty.CERTAIN: "under load the check competes with the server, times out, and fails.",
    Certainty.LIKELY: "its cost is unknown, and under load it may time out and fail.",
}

_TREE_TESTS: Final = frozenset({"-name", "-iname", "-path", "-ipath", "-regex", "-type", "-size", "-empty"})


def check(target: Target, facts: Facts) -> Findings:
    for probe in probes(target, LIVENESS, READINESS, STARTUP):
        summary = probe.command
        found = _heavy(summary) or _costly(summary)
        if found is None:
            continue
        what, certainty = found
        yield Finding(
            probe.at("exec.command"),
            f"The {probe.name} {what}, every {probe.period} s: {_CONSEQUENCE[certainty]}",
            "Ask the server itself with httpGet or grpc, and do such work once: at start or in a CronJob.",
            Certainty.LIKELY if probe.field == STARTUP else certainty,
        )


def _heavy(summary: CommandSummary) -> tuple[str, Certainty] | None:
    """Checksums, walks through directory trees, and model loading."""
    before = ""
    for command in summary.commands:
        if what := _checksum(command, before) or _heavy_work(command):
            return what, Certainty.CERTAIN
        before = command.name
    for script in summary.scripts:
        if _INTEGRITY.search(script):
            return f"runs {script[:80]}, a check of integrity", Certainty.CERTAIN
    return None


def _checksum(command: Command, before: str) -> str | None:
    """A checksum, except of the short output of the command before it in a pipe."""
    arguments = command.argv[1:]
    if command.name == "openssl" and arguments and arguments[0] in _OPENSSL_DIGESTS:
        return None if before in _SHORT_OUTPUT else f"runs openssl {arguments[0]}"
    if command.name not in _CHECKSUMS or "--version" in arguments:
        return None
    reads_files = any(word[:1] != "-" for word in arguments)
    return f"runs {command.name}" if reads_files or before not in _SHORT_OUTPUT else None


def _heavy_work(command: Command) -> str | None:
    arguments = command.argv[1:]
    if command.name in _HEAVY_PROGRAMS and "--version" not in arguments:
        return f"runs {command.name}"
    if command.name == "find" and _walks_everything(arguments):
        return "walks the whole file system with find"
    if (command.name == "ls" and _has_flag(arguments, "R")) or (
        command.name in ("grep", "egrep", "fgrep")
        and (_has_flag(arguments, "r") or _has_flag(arguments, "R"))
    ):
        return f"walks a directory tree with {command.name}"
    if command.name in _ARCHIVERS and any(word in _ARCHIVE_TESTS for word in arguments):
        return f"reads a whole archive with {command.name}"
    if _INTEGRITY.search(command.name):
        return f"runs {command.name}, a check of integrity"
    for call in command.calls:
        if _LOADING_CALLS.search(call) or _INTEGRITY.search(call):
            return f"calls {call[:60]}"
    return None


def _has_flag(arguments: tuple[str, ...], letter: str) -> bool:
    return any(
        word == "--recursive" or (word[:1] == "-" and word[1:2] != "-" and letter in word[1:])
        for word in arguments
    )


def _walks_everything(arguments: tuple[str, ...]) -> bool:
    roots = takewhile(lambda word: word[:1] not in "-(!", arguments)
    return not {"/", "//", "/."}.isdisjoint(roots) and "-maxdepth" not in arguments


def _costly(summary: CommandSummary) -> tuple[str, Certainty] | None:
    """Work whose cost depends on the data. The content of script files is unknown, so they get no finding."""
    for command in summary.commands:
        framework = next((call for call in command.calls if call.partition(".")[0] in _FRAMEWORKS), None)
        if framework:
            return f"imports {framework.partition('.')[0]}", Certainty.LIKELY
        words = set(command.argv)
        if command.name == "find" and "-maxdepth" not in words and words & _TREE_TESTS:
            return "walks a directory tree with find", Certainty.LIKELY
    return None


RULE = rule(__name__, check, requires=(PodFeature.EXEC,))
