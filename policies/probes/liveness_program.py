"""Liveness by progress: a program in the server's container detects hangs that the health endpoint does not.

It is injected only for servers with which it was tested. If the flags, variables or image leave a doubt,
liveness asks the endpoint, and the reason is reported.
designs/0009-liveness-by-progress.md.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from policies.containers.programs import programs
from policies.core.annotations import LIVENESS
from policies.core.facts import Facts
from policies.kube.images import repository_and_tag
from policies.kube.json import Json, dig, integer, mapping, maps, text
from policies.kube.pods import Container
from policies.probes.endpoints import preset_health
from policies.probes.preset import Progress
from policies.probes.recognition import Server, version_of
from policies.probes.standard_probes_settings import Liveness, StandardProbes

TIMEOUT: Final = 30
"""timeoutSeconds, and the minimum of periodSeconds. The program passes after 25 seconds."""

SHELL: Final = ("sh", "-c", 'python3 -I -S -c "$0" "$@"; test $? -ne 100')
"""Runs the program in the next argument. Only its exit status 100 fails the probe: a missing interpreter, or
one that does not start or is killed, passes."""


class Check(NamedTuple):
    """The handler of a liveness probe, or why there is none, as part of a sentence."""

    handler: Json | None
    why_not: str = ""


def parse_liveness(value: object) -> Liveness:
    """The value of the annotation. Raises ValueError with a sentence."""
    try:
        return Liveness(str(value))
    except ValueError:
        raise ValueError(f"{str(value)[:40]!r} is neither progress nor endpoint") from None


def requested_liveness(pod: Json, container: Container, facts: Facts) -> Liveness | None:
    """The value of the pod's annotation for a container; None if it is absent or invalid."""
    ours = facts.view(pod).chassis_annotations
    value = ours.get(f"{LIVENESS}.{container.name}", ours.get(LIVENESS)) if ours else None
    try:
        return None if value is None else parse_liveness(value)
    except ValueError:
        return None


def progress_check(
    pod: Json, container: Container, endpoint: Json | None, facts: Facts, start: int = 0
) -> Check | None:
    """The progress check of a container; None if its server has none, or if the endpoint was chosen.

    `endpoint` is the preset's handler, or None. `start` is the startup budget in seconds if there is no
    startupProbe, else 0.
    """
    settings = facts.settings(StandardProbes)
    requested = requested_liveness(pod, container, facts)
    server = settings.recogniser.server(container)
    if (requested or settings.liveness) is Liveness.ENDPOINT or server is None:
        return None
    progress = server.preset.progress
    if progress is None:
        return Check(None, f"no such check is known for {server.name}") if requested else None
    if endpoint is None or "httpGet" not in endpoint:
        return Check(None, "its health endpoint is not the preset's")
    if why_not := _why_not(container, server, progress, requested=requested is not None):
        return Check(None, why_not)
    port, scheme = integer(endpoint, "httpGet", "port", default=0), text(endpoint, "httpGet", "scheme")
    keys = _key_variables(server, progress) or ()
    command = [*SHELL, program(progress.program), str(port), (scheme or "HTTP").lower(), str(start), *keys]
    return Check({"exec": {"command": command}})


def blind_because(pod: Json, container: Container, facts: Facts) -> str | None:
    """Why a container's livenessProbe asks an endpoint that detects no hangs, although its server has a
    progress check; None if it does not, or if the endpoint was chosen."""
    settings = facts.settings(StandardProbes)
    server, probe = settings.recogniser.server(container), container.spec.get("livenessProbe")
    if server is None or server.preset.progress is None or is_program(probe):
        return None
    if text(probe, "httpGet", "path") != server.preset.live_path:
        return None
    health = preset_health(container, settings)
    check = progress_check(pod, container, health.live if health else None, facts)
    return check and (check.why_not or "the probe was written by hand")


def is_program(probe: object) -> bool:
    """Whether a probe runs one of the programs."""
    command = dig(probe, "exec", "command")
    return isinstance(command, list) and len(command) > 4 and text(command, 3) in _texts()


def watched_start(probe: object) -> int:
    """Seconds that a program in this probe allows for the start; 0 if it does not watch the start."""
    start = text(dig(probe, "exec", "command"), 6) if is_program(probe) else ""
    return int(start) if start.isascii() and start.isdigit() and len(start) < 10 else 0


def can_watch_start(pod: Json, container: Container) -> bool:
    """Whether the program can distinguish a hung start from a slow one. It sees only the processes of this
    container, so these must not wait for another pod.

    Of replicas that share a volume, one downloads the model, and the others are idle until its lock is free.
    """
    spec = mapping(pod, "spec")
    if spec.get("shareProcessNamespace") is True or spec.get("hostPID") is True:
        return False
    if not text(spec, "runtimeClassName").startswith("nvidia") and "runtimeClassName" in spec:
        return False
    mounted = {text(mount, "name") for mount in maps(container.spec, "volumeMounts")}
    own = {text(each, "name") for each in maps(spec, "volumes") if not each.keys().isdisjoint(_OWN_VOLUMES)}
    return mounted <= own


_OWN_VOLUMES: Final = ("emptyDir", "ephemeral", "configMap", "secret", "projected", "downwardAPI")
"""Volumes that no other pod writes to."""


def _why_not(container: Container, server: Server, progress: Progress, *, requested: bool) -> str:
    """Why the program could be wrong about a container, or an empty text. An annotation (`requested`) admits
    any image and version."""
    if not requested:
        version = version_of(repository_and_tag(container.image)[1])
        if not server.own_image:
            return "its image is not the server's own, and may lack python3"
        if not version:
            return "its image does not show its version"
        if version < version_of(progress.since):
            return f"it was not tried with versions before {progress.since}"
    if flag := _flag_in_use(server, progress.unless_flags):
        return f"it is started with {flag}, with which this was not tried"
    if name := next((name for name in progress.unless_env if server.has_variable(name)), None):
        return f"{name} is set, with which this was not tried"
    if len(programs(container)) > 1:
        return "it is not the only program that the container starts"
    if server.may_have_option(*progress.unless_flags) or _may_have_further_flags(server):
        return "a variable may hold flags with which this was not tried"
    if server.configured(server.preset.host_flags, ()) not in (None, "", "0.0.0.0", "::", "[::]"):  # noqa: S104
        return "it listens on one address only"
    if _key_variables(server, progress) is None:
        return "its API key is in no variable"
    return ""


def _flag_in_use(server: Server, flags: tuple[str, ...]) -> str | None:
    """The first of the flags in the command line; also as `--a_b` or `--a.b`."""
    names = {word.partition("=")[0].partition(".")[0].replace("_", "-") for word in server.argv}
    return next((flag for flag in flags if flag in names), None)


def _may_have_further_flags(server: Server) -> bool:
    """Whether a variable may contain flags: `$ARGS`, but not `--model $MODEL` or `serve $MODEL`."""
    pairs = zip(("", *server.argv), server.argv, strict=False)
    return any(
        word.startswith("$") and not (before.startswith("-") and "=" not in before) and before != "serve"
        for before, word in pairs
    )


def _key_variables(server: Server, progress: Progress) -> tuple[str, ...] | None:
    """The variables that may contain the API key; None if a flag contains it in another form."""
    key = server.configured(progress.key_flags, ())
    if key is None:
        return progress.key_env
    variable = _VARIABLE.fullmatch(key)
    return (variable[1] or variable[2] or variable[3],) if variable else None


_VARIABLE: Final = re.compile(
    r"\$(?:([A-Za-z_]\w{0,99})|\{([A-Za-z_]\w{0,99})\}|\(([A-Za-z_]\w{0,99})\))", re.ASCII
)


@cache
def program(name: str) -> str:
    """The text of a program without its comments and docstring."""
    source = files("policies.probes").joinpath("programs", f"{name}.py").read_text("utf-8")
    _, _, code = source.partition('"""\n\n')
    lines = (line for line in code.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    return "\n".join(lines)


@cache
def _texts() -> frozenset[str]:
    names = (item.name for item in files("policies.probes").joinpath("programs").iterdir())
    return frozenset(program(name.removesuffix(".py")) for name in names if name.endswith(".py"))
