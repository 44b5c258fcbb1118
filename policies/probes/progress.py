"""Liveness by progress: a program in the server's container that notices a hang behind a healthy endpoint.

Law: only where a real server has shown that the program finds its hangs and never fails while it works. If
its flags, variables or image leave a doubt, the endpoint is asked as before, with a reason.
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
from policies.probes.settings import Liveness, StandardProbes

TIMEOUT: Final = 30
"""Seconds for timeoutSeconds and at least for periodSeconds: the program passes on its own after 25."""

SHELL: Final = ("sh", "-c", 'python3 -I -S -c "$0" "$@"; test $? -ne 100')
"""Runs a program, which is the next argument. Only its own verdict fails the probe: a missing interpreter,
and one that does not start or is killed, pass."""


class Check(NamedTuple):
    """Either the handler of a liveness probe, or why there is none, as part of a sentence."""

    handler: Json | None
    why_not: str = ""


def parse_liveness(value: object) -> Liveness:
    """The value of the annotation; ValueError with a sentence otherwise."""
    try:
        return Liveness(str(value))
    except ValueError:
        raise ValueError(f"{str(value)[:40]!r} is neither progress nor endpoint") from None


def requested_liveness(pod: Json, container: Container, facts: Facts) -> Liveness | None:
    """What the pod's annotation asks for a container; None where it does not, or cannot be read."""
    ours = facts.view(pod).ours
    value = ours.get(f"{LIVENESS}.{container.name}", ours.get(LIVENESS)) if ours else None
    try:
        return None if value is None else parse_liveness(value)
    except ValueError:
        return None


def progress_check(
    pod: Json, container: Container, endpoint: Json | None, facts: Facts, start: int = 0
) -> Check | None:
    """How the liveness of a container is checked by progress; None if there is no way for its server, or if
    the endpoint is wanted.

    `endpoint` is the handler that the preset gives, None where something else gives it. `start` is how many
    seconds a start may take that no startupProbe waits for, 0 where one does.
    """
    settings = facts.settings(StandardProbes)
    wanted = requested_liveness(pod, container, facts)
    server = settings.recogniser.server(container)
    if (wanted or settings.liveness) is Liveness.ENDPOINT or server is None:
        return None
    progress = server.preset.progress
    if progress is None:
        return Check(None, f"no such check is known for {server.name}") if wanted else None
    if endpoint is None or "httpGet" not in endpoint:
        return Check(None, "its health endpoint is not the preset's")
    why_not = _why_not(container, server, progress, sure=wanted is not None)
    if why_not:
        return Check(None, why_not)
    port, scheme = integer(endpoint, "httpGet", "port", default=0), text(endpoint, "httpGet", "scheme")
    keys = _key_variables(server, progress) or ()
    words = [*SHELL, program(progress.program), str(port), (scheme or "HTTP").lower(), str(start), *keys]
    return Check({"exec": {"command": words}})


def blind_because(pod: Json, container: Container, facts: Facts) -> str | None:
    """Why a container's livenessProbe asks an endpoint that does not notice a hang, although a check is known
    that does; None where it does not, or where somebody chose the endpoint."""
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
    """Seconds that a start may take of which one of the programs is in charge; 0 where it is not."""
    start = text(dig(probe, "exec", "command"), 6) if is_program(probe) else ""
    return int(start) if start.isascii() and start.isdigit() and len(start) < 10 else 0


def can_watch_start(pod: Json, container: Container) -> bool:
    """Whether the program can distinguish a start that hangs from a slow one: it sees only the processes of
    this container, so these must not wait for another pod.

    Replicas that share a volume download a model once: all but one wait for its lock, and do nothing.
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
"""Volumes in which no other pod writes."""


def _why_not(container: Container, server: Server, progress: Progress, *, sure: bool) -> str:
    """Why the program could be wrong about a container; empty where it is not. With `sure` somebody asks for
    it who knows the image."""
    if not sure and not server.own_image:
        return "its image is not the server's own, and may lack python3"
    version = version_of(repository_and_tag(container.image)[1])
    if not sure and not version:
        return "its image does not show its version"
    if not sure and version < version_of(progress.since):
        return f"it was not tried with versions before {progress.since}"
    if flag := _given(server, progress.unless_flags):
        return f"it is started with {flag}, with which this was not tried"
    if name := next((name for name in progress.unless_env if server.has_variable(name)), None):
        return f"{name} is set, with which this was not tried"
    if len(programs(container)) > 1:
        return "it is not the only program that the container starts"
    if server.may_have_option(*progress.unless_flags) or _has_open_words(server):
        return "a variable may hold flags with which this was not tried"
    if server.configured(server.preset.host_flags, ()) not in (None, "", "0.0.0.0", "::", "[::]"):  # noqa: S104
        return "it listens on one address only"
    if _key_variables(server, progress) is None:
        return "its API key is in no variable"
    return ""


def _given(server: Server, flags: tuple[str, ...]) -> str | None:
    """The flag among these that a server is started with; also as `--a_b` and as `--a.b`."""
    names = {word.partition("=")[0].partition(".")[0].replace("_", "-") for word in server.argv}
    return next((flag for flag in flags if flag in names), None)


def _has_open_words(server: Server) -> bool:
    """Whether a variable is in a place where a flag may be: `$ARGS`, but neither `--model $MODEL` nor
    `serve $MODEL`."""
    pairs = zip(("", *server.argv), server.argv, strict=False)
    return any(
        word.startswith("$") and not (before.startswith("-") and "=" not in before) and before != "serve"
        for before, word in pairs
    )


def _key_variables(server: Server, progress: Progress) -> tuple[str, ...] | None:
    """The variables that may hold the API key; None where a flag holds it otherwise."""
    told = server.configured(progress.key_flags, ())
    if told is None:
        return progress.key_env
    named = _VARIABLE.fullmatch(told)
    return (named[1] or named[2] or named[3],) if named else None


_VARIABLE: Final = re.compile(
    r"\$(?:([A-Za-z_]\w{0,99})|\{([A-Za-z_]\w{0,99})\}|\(([A-Za-z_]\w{0,99})\))", re.ASCII
)


@cache
def program(name: str) -> str:
    """The text of a program, without its comments and its docstring."""
    source = files("policies.probes").joinpath("programs", f"{name}.py").read_text("utf-8")
    _, _, code = source.partition('"""\n\n')
    lines = (line for line in code.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    return "\n".join(lines)


@cache
def _texts() -> frozenset[str]:
    names = (item.name for item in files("policies.probes").joinpath("programs").iterdir())
    return frozenset(program(name.removesuffix(".py")) for name in names if name.endswith(".py"))
