"""The probes that standard-probes adds, each with its reason and the annotation that would say the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from policies.core.annotations import (
    CANARY,
    EXPECTED_START,
    HEALTH_PATH,
    HEALTH_PORT,
    LIVE_PATH,
    LIVENESS,
    READY_PATH,
)
from policies.core.pod_view import PodView
from policies.core.reasons import Lazy, in_words
from policies.kube.json import Json, dig, text
from policies.kube.names import is_label_key
from policies.kube.objects.pods import Probe
from policies.kube.pods import Container, probe_every, timed
from policies.probes.endpoints import Source
from policies.probes.health import ANNOTATION, FALLBACK, MIRRORED
from policies.probes.liveness_program import NoProgressCheck, ProgressCheck, asked_by, patience_of
from policies.probes.standard_probes_settings import Liveness, StandardProbes
from policies.probes.startup_budget import MAX_START, StartupBudget

_LONG_TIMEOUT: Final = 60
LONG_BUDGET: Final = 2 * 3600
"""Seconds. From this startup budget on, progress detects a hung start, or the reason names the cost."""
MAX_FAILURES: Final = 2**31 - 1
"""The API's failureThreshold is an int32, and users write the largest one for "never"."""
_PATHS: Final = {"readinessProbe": READY_PATH, "livenessProbe": LIVE_PATH}
_SETTINGS: Final[Mapping[Source | None, str]] = {MIRRORED: "mirror", FALLBACK: "unknown"}
"""The settings that decide about handlers of these sources."""
_ACTIONS: Final = {"livenessProbe": "a restart", "readinessProbe": "no traffic"}


class AddedField(NamedTuple):
    """A field that a container gets, with the reason; the last three are those of `Reason`."""

    name: str
    value: Any
    why: Lazy
    setting: str = ""
    annotation: Lazy = ""
    element: str = ""
    """The name of the list element that is added; empty if the field has no list."""


def probe_field(
    pod: PodView,
    container: Container,
    name: str,
    endpoint: Json,
    timing: Probe,
    source: Source | None,
    check: ProgressCheck | NoProgressCheck | None = None,
) -> AddedField:
    """A liveness or readiness probe, which runs the program of a ProgressCheck."""
    program = check if isinstance(check, ProgressCheck) else None

    def why() -> str:
        who = "by its annotation" if source == ANNOTATION else str(source)
        if program:
            limit = ""
            if program.start:
                start = in_words(program.start)
                limit = f"; no startupProbe, because this check allows a start of up to {start} "
                limit += "while the processes work"
            patience = patience_of(program.plan, timing)
            return f"{asked_by(program.plan)} ({who}); a restart after {patience} without progress{limit}"
        request, effect = asked(endpoint), f"{_ACTIONS[name]} after {in_words(timing.give_up)} of failures"
        if source == MIRRORED:
            return f"{request}, like readiness, since that path shows that the server is alive; {effect}"
        if source == FALLBACK:
            return f"{request}, since its health endpoint is unknown; {effect}"
        blind = ""
        if isinstance(check, NoProgressCheck):
            blind = f"; it passes even if the server hangs, since progress is not checked: {check.why}"
        waits = ", since its health endpoint waits behind inferences" if "tcpSocket" in endpoint else ""
        if name == "livenessProbe" and timing.timeout >= _LONG_TIMEOUT:
            waits = f", which may take {in_words(timing.timeout)}, since it waits behind inferences"
        return f"{request}{waits} ({who}); {effect}{blind}"

    def annotation() -> str:
        if source in (MIRRORED, FALLBACK):
            return ""  # an annotation would also add a startupProbe
        if program:
            progress = f"{container_key(LIVENESS, container)}={Liveness.PROGRESS}"
            return written_annotation(pod, container, CANARY) or progress
        keys = (_PATHS[name], HEALTH_PATH, HEALTH_PORT)
        if source == ANNOTATION and (own := written_annotation(pod, container, *keys)):
            return own
        if container.spec.get("livenessProbe") is not None:
            return ""  # the rules would compare the user's own livenessProbe with the annotation
        path = text(endpoint, "httpGet", "path")
        return f"{container_key(_PATHS[name], container)}={path}" if path else ""

    setting = "liveness" if program else _SETTINGS.get(source, "presets")
    handler = program.handler if program else endpoint
    return AddedField(name, timed(handler, timing), why, setting, annotation)


def startup_field(
    container: Container,
    handler: Json,
    live: Probe,
    budget: StartupBudget,
    settings: StandardProbes,
    because: str = "",
) -> AddedField:
    """A startupProbe that lasts for the startup budget, and at least until `live` would fail."""
    timeout = max(settings.timeout, live.timeout)
    period = max(settings.startup_period, timeout)
    failures = min(-(-max(budget.seconds, live.startup_deadline) // period), MAX_FAILURES)
    timing = probe_every(period, timeout, failures)
    seconds = timing.give_up

    def annotation() -> str:
        expected = int(seconds / settings.startup_factor)
        return f"{container_key(EXPECTED_START, container)}={expected}s" if expected <= MAX_START else ""

    return AddedField(
        "startupProbe",
        timed(handler, timing),
        lambda: f"{in_words(seconds)}: {budget.why()}{because}{_cost(seconds, budget)}",
        budget.setting,
        annotation,
    )


def written_annotation(pod: PodView, container: Container, *keys: str) -> str:
    """The first of the annotations that the pod has for a container, with its value; empty without one."""
    written = pod.typed.metadata.annotations
    named = (own for key in keys for own in (f"{key}.{container.name}", key) if own in written)
    return next((f"{own}={written[own]}" for own in named), "")


def _cost(seconds: int, budget: StartupBudget) -> str:
    """The cost of a long budget, and how to make it shorter."""
    if seconds < LONG_BUDGET or budget.annotated:
        return ""
    volume = "A volume that keeps the download halves this; the" if budget.fetches else "The"
    return (
        f". If a start hangs, the kubelet restarts it only after {in_words(seconds)}. "
        f"{volume} annotation {EXPECTED_START} sets the budget"
    )


def asked(handler: Json) -> str:
    """A handler as a phrase."""
    (kind, action), *_ = handler.items()
    match kind:
        case "httpGet":
            return f"GET {text(action, 'path')} on port {dig(action, 'port')}"
        case "grpc":
            return f"the gRPC health check on port {dig(action, 'port')}"
        case "tcpSocket":
            return f"whether port {dig(action, 'port')} is open"
    return "its command"


def container_key(key: str, container: Container) -> str:
    """The annotation's key for one container; the plain key if that would be too long for the API server."""
    own = f"{key}.{container.name}"
    return own if is_label_key(own) else key
