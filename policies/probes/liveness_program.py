"""Liveness by progress: a program in the server's container detects hangs that the health endpoint does not.

A preset's `progress` names what the server shows of its work, and what it may be asked. The program finds out
whether that holds in its container: the image's tag does not decide. designs/0009-liveness-by-progress.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from msgspec.structs import asdict

from policies.containers.commands import PYTHON_SHELL
from policies.containers.programs import programs
from policies.core.annotations import LIVENESS
from policies.core.facts import Facts
from policies.core.pod_view import PodView
from policies.kube.json import Json, dig, integer, mapping, maps, text
from policies.kube.objects.pods import OF_ONE_POD, Probe
from policies.kube.pods import Container
from policies.kube.quantities import whole_number
from policies.probes.canary import annotated_progress
from policies.probes.endpoints import preset_health, speaks_tls
from policies.probes.preset import Progress
from policies.probes.recognition import Server, release
from policies.probes.standard_probes_settings import Liveness, StandardProbes

TIMEOUT: Final = 30
"""timeoutSeconds, and the minimum of periodSeconds. The program passes after 25 seconds."""


class ProgressCheck(NamedTuple):
    """A liveness probe that runs the program."""

    handler: Json
    timeout: int
    """Its timeoutSeconds."""
    plan: Json
    """What the program knows of its server."""
    start: int
    """Seconds that it allows for the start; 0 if it does not watch the start."""


class NoProgressCheck(NamedTuple):
    """Why a container whose server has a progress check, or whose pod asks for one, can have none."""

    why: str
    """Half a sentence."""


def parse_liveness(value: object) -> Liveness:
    """The value of the annotation. Raises ValueError with a sentence."""
    try:
        return Liveness(str(value))
    except ValueError:
        raise ValueError(f"{str(value)[:40]!r} is neither progress nor endpoint") from None


def requested_liveness(pod: PodView, container: Container) -> Liveness | None:
    """The value of the pod's annotation for a container; None if it is absent or invalid."""
    ours = pod.chassis_annotations
    value = ours.get(f"{LIVENESS}.{container.name}", ours.get(LIVENESS)) if ours else None
    try:
        return None if value is None else parse_liveness(value)
    except ValueError:
        return None


def progress_check(
    pod: PodView, container: Container, endpoint: Json | None, facts: Facts, start: int = 0
) -> ProgressCheck | NoProgressCheck | None:
    """The progress check of a container; None if its server has none, or if the endpoint was chosen.

    `endpoint` is the preset's handler, or None. `start` is the startup budget in seconds if there is no
    startupProbe, else 0.
    """
    settings = facts.settings(StandardProbes)
    requested = requested_liveness(pod, container)
    server = settings.recogniser.server(container)
    annotated = annotated_progress(pod, container, facts)
    progress = annotated or (progress_of(server, settings) if server else None)
    if (requested or settings.liveness) is Liveness.ENDPOINT or (server is None and annotated is None):
        return None
    if progress is None:
        return NoProgressCheck(f"no such check is known for {server and server.name}") if requested else None
    if pod.typed.spec.operating_system == "windows":
        return NoProgressCheck("it runs on Windows, which has no shell for the program")
    if 0 < container.typed.resources.memory_limit < _ROOM and not requested and annotated is None:
        return NoProgressCheck("the program needs 12 MB of the container's small memory limit")
    if endpoint is None and progress.connections and not requested:
        return None  # an annotation chose another check
    if endpoint is None or not ("httpGet" in endpoint or "tcpSocket" in endpoint):
        return NoProgressCheck("its health endpoint is not the preset's")
    if server and not annotated and (why := _why_not(server, progress)):
        return NoProgressCheck(why)
    (action,) = endpoint.values()
    port, path = integer(action, "port", default=0), text(action, "path")
    tls = text(action, "scheme") == "HTTPS" or speaks_tls(container, server, port)
    plan = _plan(server, progress)
    given = (str(port), "https" if tls else "http", str(start), path, _as_argument(plan))
    keys = _key_variables(server, progress) if server else ()
    handler = {"exec": {"command": [*PYTHON_SHELL, program(plan, start), *given, *keys]}}
    return ProgressCheck(handler, TIMEOUT + progress.longest, plan, start)


_ROOM: Final = 256 << 20
"""Bytes. With less, the memory of each check could end the server: the kernel kills all processes of a
container that exceeds its limit. Its 12 MB were measured: designs/0009-liveness-by-progress.md."""


def progress_of(server: Server, settings: StandardProbes) -> Progress | None:
    """The check of a server's progress; None if it has none."""
    progress = server.preset.progress
    if progress is None or progress.like is None:
        return progress
    other = settings.table.get(progress.like)
    return progress.of(other.progress) if other and other.progress else None


BY_HAND: Final = "the probe was written by hand"


def blind_because(pod: PodView, container: Container, facts: Facts) -> str | None:
    """Why a container's livenessProbe asks an endpoint that detects no hangs, although its server has a
    progress check; None if it does not, or if the endpoint was chosen."""
    settings = facts.settings(StandardProbes)
    server, probe = settings.recogniser.server(container), container.spec.get("livenessProbe")
    progress = progress_of(server, settings) if server else None
    if server is None or progress is None or is_program(probe):
        return None
    if progress.connections and not progress.canaries:
        return None  # its endpoint notices such a hang, too, only earlier and under overload as well
    if text(probe, "httpGet", "path") != server.preset.live_path:
        return None
    health = preset_health(container, settings)
    check = progress_check(pod, container, health.live if health else None, facts)
    if check is None:
        return None
    return check.why if isinstance(check, NoProgressCheck) else BY_HAND


def is_program(probe: object) -> bool:
    """Whether a probe runs the program, of this version or another."""
    command = dig(probe, "exec", "command")
    return isinstance(command, list) and len(command) > 6 and _NAME in text(command, 3)


_NAME: Final = "User-Agent: mlchassis-liveness"


def plan_in(probe: object) -> Json:
    """What the program in a probe knows of its server; empty for other programs."""
    try:
        return mapping(json.loads(text(dig(probe, "exec", "command"), 8)))
    except (ValueError, RecursionError):
        return {}


def asked_by(plan: Json) -> str:
    """What the program asks, as a phrase."""
    canary = dig(plan, "canaries", 0)
    if not plan or (plan.get("page") and canary):
        return "its health and its finished work, with one request if no work was finished"
    if plan.get("page"):
        return "its health, and its finished work while requests wait, without sending a request"
    if canary is None:
        return "whether it accepts connections or computes, without sending a request"
    method = "GET" if dig(canary, 1) is None else "POST"
    return f"{method} {text(canary, 0)} if no client gets an answer and its processes compute nothing"


def asks_nothing(plan: Json) -> bool:
    """Whether the program only looks whether connections are accepted."""
    return bool(plan) and not plan.get("page") and not plan.get("canaries")


def patience_of(plan: Json, timing: Probe) -> str:
    """How long a server without progress is left alone, such as `3 to 5 min`."""
    silence = integer(plan, "silence", default=30)
    least = silence + (timing.failures - 1) * timing.period
    most = silence + JITTER + timing.failures * timing.period
    return f"{least // 60} to {-(-most // 60)} min"


JITTER: Final = 59
"""The program adds 0 to so many seconds to the silence, by the pod's name."""


def watched_start(probe: object) -> int:
    """Seconds that a program in this probe allows for the start; 0 if it does not watch the start."""
    start = text(dig(probe, "exec", "command"), 6) if is_program(probe) else ""
    return whole_number(start) or 0


def can_watch_start(pod: PodView, container: Container, facts: Facts) -> bool:
    """Whether the program can distinguish a hung start from a slow one.

    It must run, so the image must be known to have Python. It sees only the processes of this container, so
    these must not wait for another pod.
    Of replicas that share a volume, one downloads the model, and the others are idle until its lock is free.
    """
    settings = facts.settings(StandardProbes)
    server = settings.recogniser.server(container)
    progress = progress_of(server, settings) if server else None
    if server is None or progress is None or not (progress.watches_start and server.own_image):
        return False
    if len(programs(container)) > 1:
        return False
    joining = progress.joining_flags
    if any(_in_use(server, joining)) or server.may_have_option(*joining) or _may_have_further_flags(server):
        return False
    spec = mapping(pod.json, "spec")
    if spec.get("shareProcessNamespace") is True or spec.get("hostPID") is True:
        return False
    if not text(spec, "runtimeClassName").startswith("nvidia") and "runtimeClassName" in spec:
        return False
    mounted = {text(mount, "name") for mount in maps(container.spec, "volumeMounts")}
    own = {text(each, "name") for each in maps(spec, "volumes") if not each.keys().isdisjoint(OF_ONE_POD)}
    return mounted <= own


def _why_not(server: Server, progress: Progress) -> str:
    """Why the program could do harm in a container, or could not run, or an empty text."""
    if not progress.image_has_python:
        return "its image has no Python to run the check"
    if server.version and progress.since and server.version < release(progress.since):
        return f"the counters of versions before {progress.since} are not known"
    for flag, value in _in_use(server, progress.unless_flags):
        if not _is_harmless(value, progress.harmless_values.get(flag, {})):
            return f"this wasn't tried with {flag}"
    if flag := next((flag for flag in progress.page_unless_flags if server.has_option(flag)), ""):
        return f"it has no page of metrics with {flag}"
    if name := next((name for name in progress.unless_env if server.has_variable(name)), None):
        return f"this wasn't tried with {name} set"
    preset = server.preset
    address = server.configured(preset.host_flags, preset.host_env)
    if address is None:
        return ""
    host = _host(address)
    if not address or "$" in host:  # often the pod's own address: status.podIP
        return "it is not certain that it listens on loopback, too"
    if host not in ("", "0.0.0.0", "::", "[::]"):  # noqa: S104
        return "it listens on one address only"
    return ""


def _host(address: str) -> str:
    """The address without the port at its end: `0.0.0.0:8000`, `[::]:$PORT`, `:8000` or only a port."""
    host = address.partition(":$")[0]
    before, _, port = host.rpartition(":")
    return before if port.isascii() and port.isdigit() else host


def _in_use(server: Server, flags: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Those of the flags in the command line, with their values; also as `--a_b` or `--a.b`."""
    if not flags:
        return
    for word, following in zip(server.argv, (*server.argv[1:], ""), strict=False):
        option, _, value = word.partition("=")
        name = option.partition(".")[0].replace("_", "-")
        if name in flags:
            yield name, value or following


def _is_harmless(value: str, known: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether the JSON in a flag has, at every depth, only known values; as `harmless` in the program."""
    try:
        parts = [json.loads(value)] if known else []
    except (ValueError, RecursionError):
        return False
    found = False
    for part in parts:
        if isinstance(part, dict):
            for name in known.keys() & part.keys():
                if part[name] not in known[name]:
                    return False
                found = True
            parts += part.values()
        elif isinstance(part, list):
            parts += part
    return found


def _may_have_further_flags(server: Server) -> bool:
    """Whether a variable may contain flags: `$ARGS`, but not `--model $MODEL` or `serve $MODEL`."""
    pairs = zip(("", *server.argv), server.argv, strict=False)
    return any(
        word.startswith("$") and not (before.startswith("-") and "=" not in before) and before != "serve"
        for before, word in pairs
    )


def _silence(server: Server | None, progress: Progress) -> int:
    """Seconds of silence until a check fails."""
    longest = server.configured(progress.silence_flags, ()) if server else None
    return max(progress.silence, whole_number(longest, 5) or 0)


def _plan(server: Server | None, progress: Progress) -> Json:
    """What the program needs to know of the preset."""
    metrics = {kind: list(names) for kind, names in asdict(progress.metrics).items() if names}
    return {
        "page": "" if progress.connections else progress.page,
        "port": _page_port(server, progress),
        "metrics": metrics,
        "ignored": list(progress.ignored_labels),
        "workers": list(progress.workers),
        "models": progress.models or "",
        "canaries": [[each.path, each.body] for each in progress.canaries],
        **({"body": progress.body_variable} if progress.body_variable else {}),
        "paused": list(progress.paused),
        "silence": _silence(server, progress),
        "longest": progress.longest,
        "unless": list(progress.unless_flags),
        "harmless": {flag: dict(values) for flag, values in progress.harmless_values.items()},
        "env": list(progress.unless_env),
        "config": list(server.preset.config_flags) if server else [],
        "keys": list(progress.key_flags),
    }


def _as_argument(plan: Json) -> str:
    return json.dumps(plan, separators=(",", ":")).replace("$", "\\u0024")  # the kubelet expands $(NAME)


def _page_port(server: Server | None, progress: Progress) -> int:
    """The port of the metrics page; 0 if it is the server's."""
    value = server.configured(progress.page_port_flags, progress.page_port_env) if server else None
    port = whole_number(value, 5)
    return progress.page_port if port is None else port


def _key_variables(server: Server, progress: Progress) -> tuple[str, ...]:
    """The variables that may contain the API key. The program also reads the server's arguments."""
    key = server.configured(progress.key_flags, ())
    variable = _VARIABLE.fullmatch(key or "")
    return (variable[1] or variable[2] or variable[3],) if variable else progress.key_env


_VARIABLE: Final = re.compile(
    r"\$(?:([A-Za-z_]\w{0,99})|\{([A-Za-z_]\w{0,99})\}|\(([A-Za-z_]\w{0,99})\))", re.ASCII
)


def program(plan: Json | None = None, start: int = 0) -> str:
    """The text of the program, with the parts that a plan needs; without one, all of it."""
    if plan is None:
        return _program_of(None)
    parts = ["page" if plan["page"] else "connections"]
    parts += ["start"] if start else []
    parts += ["workers"] if plan["workers"] and not plan["page"] else []
    parts += ["canary"] if plan["canaries"] else []
    # The body of canaries may be missing in the container: then none is sent.
    parts += ["watch"] if not plan["canaries"] or "body" in plan else []
    return _program_of(frozenset(parts))


@cache
def _program_of(parts: frozenset[str] | None) -> str:
    """The program without comments, docstrings and other parts, indented by one space: every pod holds it."""
    lines, part = [], _ALWAYS
    for line in _source().splitlines():
        text = line.lstrip()
        if text.startswith(_PART):
            part = text.removeprefix(_PART)
        if text and not text.startswith(_COMMENTS) and (part == _ALWAYS or parts is None or part in parts):
            lines.append(" " * ((len(line) - len(text)) // 4) + text)
    return "\n".join(lines)


@cache
def _source() -> str:
    """The program without its docstring."""
    text = files("policies.probes").joinpath("programs", "progress.py").read_text("utf-8")
    return text.partition('"""\n\n')[2]


_COMMENTS: Final = ("#", '"""')
_PART: Final = "# part: "
_ALWAYS: Final = "all"
