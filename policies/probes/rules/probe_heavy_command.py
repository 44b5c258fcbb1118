"""Commands in probes that cost too much or take too long: under load the check itself kills."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

from policies.commands import Command, CommandSummary
from policies.core.contracts import Family, Rule
from policies.core.facts import Facts
from policies.core.finding import Certainty, Finding
from policies.core.mode import Mode
from policies.core.target import Target
from policies.kube.json import mapping
from policies.probes.probe import LIVENESS, READINESS, STARTUP, probes

_CHECKSUMS: Final = frozenset(
    {"md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "b2sum", "b3sum", "xxhsum"}
    | {"cksum", "sum", "shasum", "md5"}
)
_OPENSSL_DIGESTS: Final = frozenset({"dgst", "md5", "sha1", "sha256", "sha512"})
_SHORT_OUTPUT: Final = frozenset({"echo", "printf", "date", "hostname", "curl", "wget", "jq", "redis-cli"})
"""What prints little: a checksum of that costs nothing."""
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
    Certainty.SURE: "under load the check takes what the server needs, times out, and fails.",
    Certainty.LIKELY: "what that costs can't be seen here, and under load it may time out and fail.",
}
_TREE_TESTS: Final = frozenset({"-name", "-iname", "-path", "-ipath", "-regex", "-type", "-size", "-empty"})


# --- heavy commands ------------------------------------------------------------------------------


def check_heavy(target: Target, facts: Facts) -> Iterator[Finding]:
    for probe in probes(target, LIVENESS, READINESS, STARTUP):
        summary = probe.command
        found = _heavy(summary) or _costly(summary)
        if found is None:
            continue
        what, certainty = found
        yield Finding(
            probe.at("exec.command"),
            f"The {probe.name} {what}, every {probe.period} s: {_CONSEQUENCE[certainty]}",
            "Let the server answer for itself over httpGet or grpc, and do such work once, at start or in a "
            "CronJob.",
            Certainty.LIKELY if probe.field == STARTUP else certainty,
        )


def _heavy(summary: CommandSummary) -> tuple[str, Certainty] | None:
    """Work that grows with the data: checksums, walks over trees, loading a model."""
    before = ""
    for command in summary.commands:
        if what := _checksum(command, before) or _heavy_work(command):
            return what, Certainty.SURE
        before = command.name
    for script in summary.scripts:
        if _INTEGRITY.search(script.path):
            return f"runs {script.path[:80]}, a check of integrity", Certainty.SURE
    return None


def _checksum(command: Command, before: str) -> str | None:
    """A checksum, unless it is one of the few bytes that the command before it in a pipe prints."""
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
    return _find_roots(arguments) & {"/", "//", "/."} != set() and not _is_shallow(arguments)


def _find_roots(arguments: tuple[str, ...]) -> set[str]:
    roots = set()
    for word in arguments:
        if word[:1] in "-(!":
            break
        roots.add(word)
    return roots or {"."}


def _is_shallow(arguments: tuple[str, ...]) -> bool:
    return "-maxdepth" in arguments


def _costly(summary: CommandSummary) -> tuple[str, Certainty] | None:
    """Work whose cost isn't known, or a whole interpreter's start."""
    for command in summary.commands:
        framework = next((call for call in command.calls if call.partition(".")[0] in _FRAMEWORKS), None)
        if framework:
            return f"imports {framework.partition('.')[0]}", Certainty.LIKELY
        words = set(command.argv)
        if command.name == "find" and not _is_shallow(command.argv) and words & _TREE_TESTS:
            return "walks a directory tree with find", Certainty.LIKELY
    if summary.scripts:
        script = summary.scripts[0]
        return f"runs {script.interpreter} {script.path[:80]}".replace("  ", " "), Certainty.LIKELY
    return None


# --- timeouts inside -----------------------------------------------------------------------------


def check_inner_timeout(target: Target, facts: Facts) -> Iterator[Finding]:
    for probe in probes(target, LIVENESS, READINESS, STARTUP):
        seconds = probe.command.seconds
        if seconds <= probe.timeout:
            continue
        if seconds == math.inf:
            found = "may wait without end"
            hint = "Ask once: kubelet itself repeats the probe every period."
        else:
            found = f"may take {seconds:g} s by its own timeouts"
            hint = (
                f"Keep the sum of the inner timeouts below timeoutSeconds, or raise that above {seconds:g}."
            )
        yield Finding(
            probe.at("exec.command"),
            f"The command of the {probe.name} {found}, but kubelet ends it after {probe.timeout} s: the slow "
            "case always counts as a failure.",
            hint,
        )


def check_default_timeout(target: Target, facts: Facts) -> Iterator[Finding]:
    for probe in probes(target, LIVENESS):
        if mapping(probe.spec, "exec") and probe.timeout <= 1:
            yield Finding(
                probe.at("timeoutSeconds"),
                f"The {probe.name} starts a process and gives it 1 s: on a busy node that passes before the "
                "process runs, and the container is killed.",
                "Set timeoutSeconds to 5 or more, or ask over httpGet or grpc.",
            )


# --- the rules -----------------------------------------------------------------------------------

_EXEC: Final = (
    "https://kubernetes.io/docs/tasks/configure-pod-container/configure-liveness-readiness-startup-probes/"
)


def _workload(probe: str) -> str:
    return (
        """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: generator}
spec:
  replicas: 2
  selector: {matchLabels: {app: generator}}
  template:
    metadata: {labels: {app: generator}}
    spec:
      containers:
        - name: server
          image: registry.example/generator:1
          ports: [{containerPort: 8080}]
          livenessProbe:
"""
        + probe
        + """\
            periodSeconds: 20
            failureThreshold: 6
"""
    )


RULES = (
    Rule(
        id="probe-heavy-command",
        family=Family.CASCADE,
        check=check_heavy,
        standard=Mode.ENFORCE,
        strict=Mode.ENFORCE,
        likely=(Mode.WARN, Mode.ENFORCE),
        what="A liveness or readiness probe whose command computes checksums, walks directory trees or "
        "loads a model; or, less certain, one that runs a script file or imports a framework. In a startup "
        "probe all of these are less certain.",
        why="A probe runs every few seconds in every replica. Work that grows with the data (tens of "
        "gigabytes of weights) competes with the server for disk, CPU and page cache, so it is slowest just "
        "when the server is busiest: the probe times out, kubelet kills a container that was only busy, and "
        "the rest of the replicas get its load. A script hides the same from every reader of the manifest.",
        mend="Let the server answer for itself over httpGet or grpc. Verify files once, when they arrive.",
        source=_EXEC,
        bad=_workload("""\
            exec: {command: [sh, -c, "cd /models && sha256sum -c weights.sha256"]}
            timeoutSeconds: 10
"""),
        good=_workload("""\
            exec: {command: [sh, -c, "test -s /models/weights.bin"]}
            timeoutSeconds: 10
"""),
    ),
    Rule(
        id="probe-inner-timeout",
        family=Family.CASCADE,
        check=check_inner_timeout,
        standard=Mode.WARN,
        strict=Mode.WARN,
        what="An exec probe whose own timeouts (curl -m, wget -T, nc -w, timeout N, sleep) come to more than "
        "timeoutSeconds: summed over what runs in sequence, capped by an enclosing `timeout N`.",
        why="Kubelet kills the command after timeoutSeconds, so the patience written into it never applies: "
        "an answer that the command would still have waited for counts as a failure. With some container "
        "runtimes the killed command's children go on running and pile up.",
        mend="Make the inner timeouts together shorter than timeoutSeconds, or raise timeoutSeconds.",
        source="https://github.com/ray-project/kuberay/issues/2264",
        bad=_workload("""\
            exec:
              command: [sh, -c, "curl -sf -m 4 http://localhost:8080/live && curl -sf -m 4 http://localhost:8081/live"]
            timeoutSeconds: 5
"""),
        good=_workload("""\
            exec:
              command: [sh, -c, "curl -sf -m 2 http://localhost:8080/live && curl -sf -m 2 http://localhost:8081/live"]
            timeoutSeconds: 5
"""),
    ),
    Rule(
        id="exec-probe-default-timeout",
        family=Family.CASCADE,
        check=check_default_timeout,
        standard=Mode.WARN,
        strict=Mode.ENFORCE,
        what="An exec livenessProbe with timeoutSeconds 1, which is the default.",
        why="An exec probe starts a process in the container, inside the container's own CPU limit. When "
        "the server uses that limit up, a shell with a client takes longer than a second to start, so the "
        "busiest replica is killed for being busy; its load goes to the others, and they follow.",
        mend="Set timeoutSeconds to 5 or more, or use httpGet or grpc, which start no process.",
        source=f"{_EXEC}#configure-probes",
        bad=_workload("""\
            exec: {command: [curl, -sf, "http://localhost:8080/live"]}
"""),
        good=_workload("""\
            exec: {command: [curl, -sf, "http://localhost:8080/live"]}
            timeoutSeconds: 5
"""),
    ),
)
