"""The mutator standard-probes, which standard-probes.md documents."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from policies.core.annotations import (
    DOMAIN,
    EXPECTED_START,
    HEALTH_PATH,
    HEALTH_PORT,
    LIVE_PATH,
    LIVENESS,
    MODEL_SIZE,
    READY_PATH,
)
from policies.core.contracts import Mutator
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.groups import GROUP_PATIENCE, Waits, in_leader_worker_set
from policies.core.reasons import UNREAD, Reasons, lasting, times
from policies.core.suggestions import closest
from policies.kube import probe_timing
from policies.kube import quantities as units
from policies.kube.group_kinds import POD
from policies.kube.json import Json, dig, integer, text
from policies.kube.metadata import annotations_of
from policies.kube.names import is_label_key, listed
from policies.kube.pods import Container, Role, edited
from policies.probes.endpoints import preset_health, server_port, unsure
from policies.probes.group_formation import deadlocks, left_unready, waits_for
from policies.probes.health import (
    ANNOTATION,
    MIRRORED,
    NOBODY,
    AnnotationError,
    Handlers,
    annotated_health,
    handler_of,
    handlers,
    is_meant,
    right_port,
)
from policies.probes.progress import (
    TIMEOUT,
    Check,
    annotated_liveness,
    can_watch_start,
    is_program,
    parse_liveness,
    progress_check,
    watched_start,
)
from policies.probes.serving import HEALTH_ANNOTATIONS, istio_came_first, serving_containers
from policies.probes.settings import Liveness, StandardProbes
from policies.probes.start import LONGEST_START, Budget, budget_of, expected_start

__all__ = ["MUTATOR", "StandardProbes", "advise", "mutate"]

_WAITING_FAILURES: Final = 3
"""Failures of a livenessProbe whose timeout covers the requests that are served before it."""
_LONG_CHECK: Final = 60
_MOST_FAILURES: Final = 2**31 - 1
"""The API's failureThreshold is an int32, and users write the largest one for "never"."""


def mutate(pod: Json, settings: StandardProbes, facts: Facts, why: Reasons = UNREAD) -> Json:
    """The pod with the missing probes of its serving containers filled in, and with a startupProbe
    wherever a livenessProbe would end the start."""
    view = facts.view(pod)
    if view.completes:
        return pod
    serving = {container.name for container in serving_containers(pod, facts)}
    changed = pod
    for container in view.running:
        # Asked of the original pod: its facts are computed once, and injected probes do not count.
        if container.name in serving:
            spec = _with_probes(pod, container, settings, facts, why)
        else:
            spec = _with_guard(pod, container, settings, facts, why)
        changed = edited(changed, container, spec)
    return changed


def _with_probes(
    pod: Json, container: Container, settings: StandardProbes, facts: Facts, why: Reasons
) -> Json:
    spec = container.spec
    live, ready, startup = (spec.get(name) for name in ("livenessProbe", "readinessProbe", "startupProbe"))
    if live is not None and _is_kuberays(pod, container, facts):
        return spec
    if live is not None and ready is not None:
        return _with_guard(pod, container, settings, facts, why)
    try:
        found = handlers(pod, container, settings, facts)
    except AnnotationError:
        return _with_guard(pod, container, settings, facts, why)
    timeout = _timeout(container, settings)
    held = waits_for(pod, container, facts) is not Waits.NO
    added: Json = {}
    if ready is None and found.ready is not None and not held:
        ready = added["readinessProbe"] = _readiness(found.ready, settings, timeout, live)
    if live is None and found.live is not None:
        budget = _budget(pod, container, ready, settings, facts)
        live = added["livenessProbe"] = _liveness(found.live, settings, timeout, ready)
        watched = not held and startup is None and ready is not None and _is_watched(pod, container, budget)
        check = _progress(pod, container, found, facts, budget.seconds if watched else 0)
        watched = watched and check is not None and check.handler is not None
        if held or in_leader_worker_set(pod):
            live["failureThreshold"] = min(live["failureThreshold"] * GROUP_PATIENCE, _MOST_FAILURES)
        if held and startup is None:
            live["initialDelaySeconds"] = budget.seconds * GROUP_PATIENCE
        elif startup is None and (found.live_from == MIRRORED or container.role is Role.SIDECAR):
            live["initialDelaySeconds"] = budget.seconds
        elif startup is None and not watched:
            probe = added["startupProbe"] = _startup(live, settings, budget.seconds)
            _give_startup(why, container, probe, budget, settings)
        live = added["livenessProbe"] = _patient(live, found.live, container, settings)
        if check is not None and check.handler is not None:
            delay = {key: live[key] for key in ("initialDelaySeconds",) if key in live}
            live = added["livenessProbe"] = {**_liveness(check.handler, settings, TIMEOUT, ready), **delay}
        _give(why, pod, container, "livenessProbe", live, found.live_from, check)
    if "readinessProbe" in added:
        _give(why, pod, container, "readinessProbe", added["readinessProbe"], found.ready_from)
    changed = container.edited({**spec, **added}) if added else container
    return _with_guard(pod, changed, settings, facts, why)


def _with_guard(
    pod: Json, container: Container, settings: StandardProbes, facts: Facts, why: Reasons
) -> Json:
    """The container with a startupProbe, if its livenessProbe would end a start that takes as long as
    is expected of it."""
    live = container.spec.get("livenessProbe")
    if container.spec.get("startupProbe") is not None or not handler_of(live) or watched_start(live):
        return container.spec
    expected = expected_start(pod, container, facts)
    if expected is None or probe_timing.kill_budget(live) >= expected:
        return container.spec
    if container.role is not Role.MAIN or _is_kuberays(pod, container, facts):
        return container.spec
    if waits_for(pod, container, facts) is not Waits.NO:
        return container.spec
    if right_port(pod, container, live, facts):  # it never passes, and would never let the others begin
        return container.spec
    budget = budget_of(pod, container, facts)
    probe = _startup(live, settings, budget.seconds)
    _give_startup(
        why,
        container,
        probe,
        budget,
        settings,
        f"; its livenessProbe would kill a start of {lasting(expected)}",
    )
    return {**container.spec, "startupProbe": probe}


def _is_kuberays(pod: Json, container: Container, facts: Facts) -> bool:
    """Whether KubeRay gives this container its probes: they are tuned to Ray's own failure detection."""
    return container.role is Role.MAIN and container.index == 0 and facts.view(pod).is_ray


def _progress(pod: Json, container: Container, found: Handlers, facts: Facts, start: int) -> Check | None:
    """How liveness is checked by progress, if it is; see `policies.probes.progress`."""
    preset = found.live is not None and found.live_from.startswith("preset ")
    return progress_check(pod, container, found.live if preset else None, facts, start)


def _is_watched(pod: Json, container: Container, budget: Budget) -> bool:
    """Whether to distinguish a start that hangs from a slow one: only if its budget is long, and no
    annotation gives its time."""
    return (
        budget.seconds >= _LONG
        and not budget.annotated
        and container.role is Role.MAIN
        and can_watch_start(pod, container)
    )


# --- how patient the probes are ----------------------------------------------------------------


def _timeout(container: Container, settings: StandardProbes) -> int:
    server = settings.recogniser.server(container)
    return max(settings.timeout, (server and server.preset.timeout) or 0)


def _readiness(handler: Json, settings: StandardProbes, timeout: int, live: Any) -> Json:
    """A readinessProbe that gives up before the liveness probe that is already there."""
    period, failures = max(settings.readiness_period, timeout), settings.readiness_failures
    if live is not None and period * failures >= probe_timing.give_up(live):
        period = max(1, min(period, probe_timing.give_up(live) // (failures + 1)))
        failures = max(1, min(failures, (probe_timing.give_up(live) - 1) // period))
    return probe_timing.timed(handler, period, min(timeout, period), failures)


def _liveness(handler: Json, settings: StandardProbes, timeout: int, ready: Any) -> Json:
    """A livenessProbe that gives up only when readiness has given up twice over."""
    timeout = max(timeout, integer(ready, "timeoutSeconds", default=1))
    period = max(settings.liveness_period, timeout, probe_timing.period(ready))
    patience = 2 * probe_timing.give_up(ready) if ready is not None else 0
    failures = min(max(settings.liveness_failures, patience // period + 1), _MOST_FAILURES)
    return probe_timing.timed(handler, period, timeout, failures)


def _patient(live: Json, handler: Json, container: Container, settings: StandardProbes) -> Json:
    """A livenessProbe that waits behind requests, where the server answers it in the thread of its models."""
    server, known = settings.recogniser.server(container), preset_health(container, settings)
    timeout = (server and server.preset.live_timeout) or 0
    if timeout <= live["timeoutSeconds"] or known is None or handler != known.live:
        return live
    period = max(live["periodSeconds"], timeout)
    failures = max(_WAITING_FAILURES, -(-probe_timing.give_up(live) // period))
    return probe_timing.timed(live, period, timeout, failures)


def _startup(live: Any, settings: StandardProbes, budget: int) -> Json:
    """A startupProbe that asks what liveness asks, for as long as the start may take."""
    timeout = max(settings.timeout, integer(live, "timeoutSeconds", default=1))
    period = max(settings.startup_period, timeout)
    budget = max(budget, probe_timing.kill_budget(live))
    return probe_timing.timed(handler_of(live), period, timeout, min(-(-budget // period), _MOST_FAILURES))


def _budget(pod: Json, container: Container, ready: Any, settings: StandardProbes, facts: Facts) -> Budget:
    """How long a start may take before the container counts as hanging: longer than readiness waits."""
    delay = min(integer(ready, "initialDelaySeconds", default=0), LONGEST_START)
    budget, least = budget_of(pod, container, facts), math.ceil(delay * settings.startup_factor)
    if budget.seconds >= least:
        return budget
    factor = times(settings.startup_factor)
    return Budget(least, lambda: f"{factor} the {lasting(delay)} that readiness waits", "startupFactor")


# --- why -----------------------------------------------------------------------------------------

_PATHS: Final = {"readinessProbe": READY_PATH, "livenessProbe": LIVE_PATH}


def _give(
    why: Reasons,
    pod: Json,
    container: Container,
    name: str,
    probe: Json,
    source: str,
    check: Check | None = None,
) -> None:
    """The reason for a liveness or readiness probe."""

    def words() -> str:
        action = {"livenessProbe": "a restart", "readinessProbe": "no traffic"}[name]
        patience = f"{action} after {lasting(probe_timing.give_up(probe))} of failures"
        if source == MIRRORED:
            return f"{_asked(probe)}, as readiness does, since that path shows that it is alive; {patience}"
        if source == NOBODY:
            return f"{_asked(probe)}, since its health endpoint is unknown; {patience}"
        who = "by its annotation" if source == ANNOTATION else source
        if is_program(probe):
            asked = "its health, the engine's counters, and one token while these do not move"
            most = watched_start(probe)
            start = (
                f"; no startupProbe: a start of at most {lasting(most)} that does something" if most else ""
            )
            return f"{asked} ({who}); a restart after 3 to 5 min without progress{start}"
        blind = f"; a hang behind it is not noticed: {check.why_not}" if check is not None else ""
        waits = ", since its health endpoint waits behind inferences" if "tcpSocket" in probe else ""
        if name == "livenessProbe" and probe_timing.timeout(probe) >= _LONG_CHECK:
            waits = f", for up to {lasting(probe_timing.timeout(probe))}, since it waits behind inferences"
        return f"{_asked(probe)}{waits} ({who}); {patience}{blind}"

    def annotation() -> str:
        if source in (MIRRORED, NOBODY):
            return ""  # one would change more than this probe: the start would be asked for, too
        if is_program(probe):
            return f"{_of_container(LIVENESS, container)}={Liveness.PROGRESS}"
        written = annotations_of(pod)
        for key in (_PATHS[name], HEALTH_PATH, HEALTH_PORT):
            for own in (f"{key}.{container.name}", key):
                if source == ANNOTATION and own in written:
                    return f"{own}={written[own]}"
        if container.spec.get("livenessProbe") is not None:
            return ""  # annotations count as right, and the user's own probe would be judged by them
        path = text(probe, "httpGet", "path")
        return f"{_of_container(_PATHS[name], container)}={path}" if path else ""

    setting = {MIRRORED: "mirror", NOBODY: "unknown"}.get(source, "presets")
    if is_program(probe):
        setting = "liveness"
    why.give(f"{container.place}.{name}", words, setting=setting, annotation=annotation)


def _give_startup(
    why: Reasons,
    container: Container,
    probe: Json,
    budget: Budget,
    settings: StandardProbes,
    because: str = "",
) -> None:
    patience = probe_timing.give_up(probe)

    def annotation() -> str:
        expected = int(patience / settings.startup_factor)
        return f"{_of_container(EXPECTED_START, container)}={expected}s" if expected <= LONGEST_START else ""

    why.give(
        f"{container.place}.startupProbe",
        lambda: f"{lasting(patience)}: {budget.why()}{because}{_cost(patience, budget)}",
        setting=budget.setting,
        annotation=annotation,
    )


_LONG: Final = 2 * 3600
"""Seconds. From this budget on, a reason names the cost of a hung start."""


def _cost(patience: int, budget: Budget) -> str:
    """The cost of a long budget, and how to make it shorter."""
    if patience < _LONG or budget.annotated:
        return ""
    volume = "A volume that keeps the download halves this; the" if budget.fetches else "The"
    return (
        f". If a start hangs, kubelet restarts it only after {lasting(patience)}. "
        f"{volume} annotation {EXPECTED_START} sets it"
    )


def _asked(probe: Json) -> str:
    """What a probe asks, in words."""
    (kind, action), *_ = handler_of(probe).items()
    match kind:
        case "httpGet":
            return f"GET {text(action, 'path')} on port {dig(action, 'port')}"
        case "grpc":
            return f"gRPC health on port {dig(action, 'port')}"
        case "tcpSocket":
            return f"an open port {dig(action, 'port')}"
    return "its command"


def _of_container(key: str, container: Container) -> str:
    """An annotation's key for one container, unless the API server takes no key so long."""
    own = f"{key}.{container.name}"
    return own if is_label_key(own) else key


# --- what a person should know -------------------------------------------------------------------


def advise(pod: Json, settings: StandardProbes, facts: Facts) -> Iterator[Finding]:
    """Faults in the annotations, and containers that get no probes."""
    yield from _misread_annotations(pod, facts)
    for container in serving_containers(pod, facts):
        try:
            annotated_health(pod, container, facts)
        except AnnotationError as error:
            yield from error.findings
        else:
            yield from deadlocks(pod, container, facts)
            waits = waits_for(pod, container, facts)
            unready = container.spec.get("readinessProbe") is None
            if unready and waits is not Waits.NO and handlers(pod, container, settings, facts).ready:
                yield left_unready(pod, container, waits)
            if container.spec.get("livenessProbe") is None and not _is_kuberays(pod, container, facts):
                yield _left_alone(pod, container, settings)
            elif finding := _without_progress(pod, container, facts):
                yield finding


def _without_progress(pod: Json, container: Container, facts: Facts) -> Finding | None:
    """The finding if an annotation asks for liveness by progress, and there is none."""
    probe = container.spec.get("livenessProbe")
    if annotated_liveness(pod, container, facts) is not Liveness.PROGRESS or is_program(probe):
        return None
    health = preset_health(container, facts.settings(StandardProbes))
    check = progress_check(pod, container, health.live if health else None, facts)
    why = "it has another livenessProbe" if check is None or check.handler is not None else check.why_not
    return Finding(
        f"spec.{container.list}[{container.index}].livenessProbe",
        f"Container {container.name} gets no liveness by progress: {why}. A hang behind its health endpoint "
        "is not noticed.",
        f"Change that, or set the annotation {LIVENESS} to endpoint.",
    )


def _misread_annotations(pod: Json, facts: Facts) -> Iterator[Finding]:
    """Annotations of this policy that mean no container, or no duration or size; and misspelt ones."""
    view = facts.view(pod)
    if not view.ours or view.completes:
        return
    names = {container.name for container in view.containers}
    known = listed(sorted(names))
    serving = serving_containers(pod, facts)
    for key, value in view.ours.items():
        base, suffix = _base_and_suffix(key)
        path = f"metadata.annotations[{key}]"
        if base is None:
            if meant := _misspelt(key):
                yield Finding(path, f"Annotation {key} is not known and has no effect.", f"Write {meant}.")
        elif suffix and suffix not in names:
            yield Finding(
                path,
                f"Annotation {key} names a container that the pod doesn't have.",
                f"The containers are {known}.",
            )
        elif parse := _PARSED.get(base):
            try:
                parse(value)
            except ValueError as error:
                yield Finding(path, f"Annotation {key} has no effect: {error}.", "Correct the value.")
        elif not suffix and serving and not any(is_meant(pod, container, facts) for container in serving):
            yield Finding(
                path,
                f"Annotation {key} could mean any of {listed(item.name for item in serving)}.",
                f"Write {key}.{serving[0].name}, with the name of the container that is meant.",
            )


_PARSED: Final[dict[str, Callable[[object], object]]] = {
    EXPECTED_START: units.parse_duration,
    MODEL_SIZE: units.parse_bytes,
    LIVENESS: parse_liveness,
}
_ANNOTATIONS: Final = (*HEALTH_ANNOTATIONS, *_PARSED)


def _base_and_suffix(key: str) -> tuple[str | None, str]:
    """`mlchassis.dev/health-path.ranker` -> the annotation and the container; None when not one of ours."""
    for base in _ANNOTATIONS:
        if key == base or key.startswith(f"{base}."):
            return base, key[len(base) + 1 :]
    return None, ""


def _misspelt(key: str) -> str | None:
    """The annotation of this policy that a key comes close to; the other policies' are farther away."""
    domain, _, rest = key.partition("/")
    name, dot, container = rest.partition(".")
    if domain != DOMAIN:
        return None
    close = closest(name.lower(), [known.partition("/")[2] for known in _ANNOTATIONS], 0.78)
    return f"{DOMAIN}/{close}{dot}{container}" if close else None


def _left_alone(pod: Json, container: Container, settings: StandardProbes) -> Finding:
    path = f"spec.{container.list}[{container.index}]"
    if istio_came_first(pod):
        return Finding(
            path,
            f"Container {container.name} gets no liveness probe: Istio's proxy is in the pod already, and "
            "would refuse a probe that Istio has not rewritten.",
            "Let this webhook run before Istio's: configurations are called in the order of their names.",
        )
    server = settings.recogniser.server(container)
    why = "its health endpoint is unknown"
    hint = "Annotate the pod template with mlchassis.dev/health-path"
    if server is not None and (doubt := unsure(container, server, server_port(container, server))):
        why, hint = f"it runs {server.name}, and {doubt[0]}", doubt[1]
    elif dig(container.spec, "readinessProbe", "exec") is not None:
        why = "its readinessProbe runs a command, and a failing command must not restart it"
    elif container.spec.get("readinessProbe") is not None:
        why = "its readinessProbe shows whether it can take traffic, not whether it is alive"
        hint = "Write a livenessProbe, or annotate the pod template with mlchassis.dev/live-path"
    rule = "readiness-without-liveness" if container.spec.get("readinessProbe") else "liveness-missing"
    sentence = f"Container {container.name} gets no liveness probe: {why}."
    return Finding(path, sentence, f"{hint}.", left_to=rule)


MUTATOR: Final = Mutator(
    "standard-probes", StandardProbes, mutate=mutate, advise=advise, kinds=(POD,), after=("model-puller",)
)
