"""The mutator standard-probes: which probes it injects, with which timing, and why.

standard-probes.md documents it; `policies.probes.advice` has its warnings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from policies.core.annotations import (
    CANARY,
    CANARY_BODY,
    EXPECTED_START,
    HEALTH_PATH,
    HEALTH_PORT,
    LIVE_PATH,
    LIVENESS,
    READY_PATH,
    TRAINING_PROGRESS,
)
from policies.core.contracts import Mutator
from policies.core.facts import Facts
from policies.core.groups import GROUP_FACTOR, Waits, in_leader_worker_set
from policies.core.pod_view import PodView
from policies.core.reasons import UNREAD, Lazy, Reasons, in_words, times
from policies.kube.group_kinds import POD
from policies.kube.json import Json, dig, maps, text
from policies.kube.names import is_label_key
from policies.kube.objects.pods import Probe
from policies.kube.pods import Container, Role, every, timed, with_container
from policies.kube.quantities import whole_number
from policies.probes.advice import advise
from policies.probes.canary import annotated_progress, body_variable
from policies.probes.copied import killed_start, startup_check
from policies.probes.endpoints import preset_health
from policies.probes.health import ANNOTATION, FALLBACK, MIRRORED, AnnotationError, health_to_inject
from policies.probes.liveness_program import (
    ProgressCheck,
    asked_by,
    can_watch_start,
    patience_of,
    progress_check,
)
from policies.probes.serving import is_kuberay_container, serving_containers, waits_for
from policies.probes.standard_probes_settings import Liveness, StandardProbes
from policies.probes.startup_budget import MAX_START, StartupBudget, budget_of
from policies.probes.training_progress import progress_of

_BLOCKING_FAILURES: Final = 3
"""The failureThreshold of a livenessProbe whose timeout covers the requests that are served before it."""
_LONG_TIMEOUT: Final = 60
_LONG_BUDGET: Final = 2 * 3600
"""Seconds. From this startup budget on, progress detects a hung start, or the reason names the cost."""
_MAX_FAILURES: Final = 2**31 - 1
"""The API's failureThreshold is an int32, and users write the largest one for "never"."""


class _Field(NamedTuple):
    """A field that a container gets, with the reason; the last three are those of `Reason`."""

    name: str
    value: Any
    why: Lazy
    setting: str = ""
    annotation: Lazy = ""
    element: str = ""
    """The name of the list element that is added; empty if the field has no list."""


def mutate(obj: Json, settings: StandardProbes, facts: Facts, why: Reasons = UNREAD) -> Json:
    """Add the missing probes of serving containers, and a startupProbe to each container whose livenessProbe
    would end the start."""
    pod, changed = facts.view(obj), obj
    serving = () if pod.completes else serving_containers(pod, facts)
    for container in pod.running:
        # Computed from the original pod: its facts are cached, and injected probes do not count.
        if pod.completes:
            fields = list(_training_liveness(pod, container, facts))
        else:
            missing = _missing_probes(pod, container, settings, facts) if container in serving else ()
            fields = [*missing, *_startup_of_own_liveness(pod, container, settings, facts)]
        if fields:
            added = {each.name: each.value for each in fields}
            changed = with_container(changed, container, {**container.spec, **added})
        for name, _, reason, setting, annotation, element in fields:
            place = f"{container.path}.{name}" + (f"[{element}]" if element else "")
            why.give(place, reason, setting=setting, annotation=annotation)
    return changed


def _training_liveness(pod: PodView, container: Container, facts: Facts) -> Iterator[_Field]:
    """The livenessProbe of a training by the progress that its annotation names."""
    progress = progress_of(pod, container, facts)
    if progress is None or container.spec.get("livenessProbe") is not None:
        return
    yield _Field(
        "livenessProbe",
        progress.probe,
        f"ends the container if nothing was written to {progress.path} for "
        f"{in_words(progress.silence)}, so that the Job retries",
        annotation=_container_key(TRAINING_PROGRESS, container),
    )


def _missing_probes(
    pod: PodView, container: Container, settings: StandardProbes, facts: Facts
) -> Iterator[_Field]:
    """The probes of a serving container that its author left out."""
    live, ready = container.typed.liveness_probe, container.typed.readiness_probe
    if live is not None and (ready is not None or is_kuberay_container(pod, container, facts)):
        return
    try:
        found = health_to_inject(pod, container, settings, facts)
    except AnnotationError:
        return
    readiness, waits = None, waits_for(pod, container, facts) is not Waits.NO
    if ready is None and found.ready is not None and not waits:
        ready = _readiness(settings, _timeout(container, settings), live)
        readiness = _probe(pod, container, "readinessProbe", found.ready, ready, found.ready_source)
    if live is None and found.live is not None:
        source = found.live_source
        yield from _missing_liveness(
            pod, container, found.live, source, ready, settings, facts, group_waits=waits
        )
    if readiness is not None:
        yield readiness


def _missing_liveness(
    pod: PodView,
    container: Container,
    endpoint: Json,
    source: str,
    ready: Probe | None,
    settings: StandardProbes,
    facts: Facts,
    *,
    group_waits: bool,
) -> Iterator[_Field]:
    """The livenessProbe, and the field that gives the start its time: a startupProbe or a delay, unless the
    program does.

    `endpoint` is the handler that asks the server, and `ready` the numbers of its readinessProbe.
    `group_waits`: whether the other pods of its group may wait until this one is Ready.
    """
    grouped = group_waits or in_leader_worker_set(pod.typed.metadata)
    budget, starts = _budget(pod, container, ready, settings, facts), container.typed.startup_probe is None
    watches_start = (
        starts and not group_waits and ready is not None and _may_watch_start(pod, container, budget, facts)
    )
    known = source.startswith("preset ") or annotated_progress(pod, container, facts)
    watched = budget.seconds if watches_start else 0
    check = progress_check(pod, container, endpoint if known else None, facts, watched)
    program = check.handler if check else None
    timing, delay = _liveness(settings, _timeout(container, settings), ready, grouped=grouped), 0
    if starts and group_waits:
        delay = budget.seconds * GROUP_FACTOR
    elif starts and (source == MIRRORED or container.role is Role.SIDECAR):
        delay = budget.seconds
    elif starts and not (watches_start and program):
        yield _startup(container, endpoint, timing, budget, settings)
    if check and program:
        timing = _liveness(settings, check.timeout, ready, grouped=grouped)
    else:
        timing = _with_patience(timing, endpoint, container, settings)
    timing = replace(timing, initial_delay_seconds=delay)
    yield _probe(pod, container, "livenessProbe", endpoint, timing, source, check)
    variable = body_variable(pod, container, facts) if program else None
    if variable is not None:
        yield _Field(
            "env",
            [*maps(container.spec, "env"), variable],
            "the body of its canary, from the ConfigMap that an annotation names",
            annotation=lambda: _written(pod, container, CANARY_BODY),
            element=variable["name"],
        )


def _startup_of_own_liveness(
    pod: PodView, container: Container, settings: StandardProbes, facts: Facts
) -> Iterator[_Field]:
    """A startupProbe, if the author's livenessProbe would end a start of the expected length."""
    live, expected = container.typed.liveness_probe, killed_start(pod, container, facts)
    if live is None or expected is None:
        return
    handler, why_not = startup_check(pod, container, container.spec["livenessProbe"], facts)
    if not handler:
        return
    because = f"; without it, your livenessProbe kills the container during its start of {in_words(expected)}"
    if why_not:
        because = f"; {_asked(handler)} instead of its livenessProbe, since {why_not}"
    yield _startup(container, handler, live, budget_of(pod, container, facts), settings, because)


def _may_watch_start(pod: PodView, container: Container, budget: StartupBudget, facts: Facts) -> bool:
    """Whether a program may replace the startupProbe, to distinguish a hung start from a slow one."""
    return (
        budget.seconds >= _LONG_BUDGET
        and not budget.annotated
        and container.role is Role.MAIN
        and can_watch_start(pod, container, facts)
    )


# --- timing --------------------------------------------------------------------------------------


def _timeout(container: Container, settings: StandardProbes) -> int:
    server = settings.recogniser.server(container)
    return max(settings.timeout, (server and server.preset.timeout) or 0)


def _readiness(settings: StandardProbes, timeout: int, live: Probe | None) -> Probe:
    """The numbers of a readinessProbe that fails before the container's livenessProbe does."""
    period, failures = max(settings.readiness_period, timeout), settings.readiness_failures
    if live is not None and period * failures >= live.give_up:
        period = max(1, min(period, live.give_up // (failures + 1)))
        failures = max(1, min(failures, (live.give_up - 1) // period))
    return every(period, min(timeout, period), failures)


def _liveness(settings: StandardProbes, timeout: int, ready: Probe | None, *, grouped: bool) -> Probe:
    """The numbers of a livenessProbe that takes more than twice as long as readiness to fail; longer for a
    member of a group, whose restart may restart the group."""
    shortest, known = (2 * ready.give_up, ready) if ready is not None else (0, Probe())
    timeout = max(timeout, known.timeout)
    period = max(settings.liveness_period, timeout, known.period)
    failures = max(settings.liveness_failures, shortest // period + 1)
    return every(period, timeout, min(failures * (GROUP_FACTOR if grouped else 1), _MAX_FAILURES))


def _with_patience(timing: Probe, endpoint: Json, container: Container, settings: StandardProbes) -> Probe:
    """The numbers with the preset's `liveTimeout` and `liveSilence`, for its own liveness endpoint."""
    server, known = settings.recogniser.server(container), preset_health(container, settings)
    if server is None or known is None or endpoint != known.live:
        return timing
    timeout, silence = server.preset.live_timeout or 0, server.preset.live_silence
    if timeout > timing.timeout:
        period = max(timing.period, timeout)
        timing = every(period, timeout, max(_BLOCKING_FAILURES, -(-timing.give_up // period)))
    longest = server.configured(server.preset.live_silence_flags, ()) if silence else None
    silence = min(max(silence, whole_number(longest, 5) or 0), MAX_START)
    return every(timing.period, timing.timeout, max(timing.failures, -(-silence // timing.period)))


def _budget(
    pod: PodView, container: Container, ready: Probe | None, settings: StandardProbes, facts: Facts
) -> StartupBudget:
    """The startup budget, longer than the delay of readiness."""
    delay = min(ready.initial_delay if ready else 0, MAX_START)
    budget, least = budget_of(pod, container, facts), math.ceil(delay * settings.startup_factor)
    if budget.seconds >= least:
        return budget
    factor = times(settings.startup_factor)
    return StartupBudget(
        least, lambda: f"{factor} the {in_words(delay)} that readiness waits", "startupFactor"
    )


# --- each field with its reason ----------------------------------------------------------------------

_PATHS: Final = {"readinessProbe": READY_PATH, "livenessProbe": LIVE_PATH}
_ACTIONS: Final = {"livenessProbe": "a restart", "readinessProbe": "no traffic"}


def _probe(
    pod: PodView,
    container: Container,
    name: str,
    endpoint: Json,
    timing: Probe,
    source: str,
    check: ProgressCheck | None = None,
) -> _Field:
    """A liveness or readiness probe, which runs the program of `check` if that has one."""
    program = check if check and check.handler else None

    def why() -> str:
        who = "by its annotation" if source == ANNOTATION else source
        if program:
            limit = ""
            if program.start:
                start = in_words(program.start)
                limit = f"; no startupProbe, because this check allows a start of up to {start} "
                limit += "while the processes work"
            patience = patience_of(program.plan, timing)
            return f"{asked_by(program.plan)} ({who}); a restart after {patience} without progress{limit}"
        asked, effect = _asked(endpoint), f"{_ACTIONS[name]} after {in_words(timing.give_up)} of failures"
        if source == MIRRORED:
            return f"{asked}, like readiness, since that path shows that the server is alive; {effect}"
        if source == FALLBACK:
            return f"{asked}, since its health endpoint is unknown; {effect}"
        blind = ""
        if check is not None:
            blind = f"; it passes even if the server hangs, since progress is not checked: {check.why_not}"
        waits = ", since its health endpoint waits behind inferences" if "tcpSocket" in endpoint else ""
        if name == "livenessProbe" and timing.timeout >= _LONG_TIMEOUT:
            waits = f", which may take {in_words(timing.timeout)}, since it waits behind inferences"
        return f"{asked}{waits} ({who}); {effect}{blind}"

    def annotation() -> str:
        if source in (MIRRORED, FALLBACK):
            return ""  # an annotation would also add a startupProbe
        if program:
            progress = f"{_container_key(LIVENESS, container)}={Liveness.PROGRESS}"
            return _written(pod, container, CANARY) or progress
        if source == ANNOTATION and (own := _written(pod, container, _PATHS[name], HEALTH_PATH, HEALTH_PORT)):
            return own
        if container.spec.get("livenessProbe") is not None:
            return ""  # the rules would compare the user's own livenessProbe with the annotation
        path = text(endpoint, "httpGet", "path")
        return f"{_container_key(_PATHS[name], container)}={path}" if path else ""

    setting = "liveness" if program else {MIRRORED: "mirror", FALLBACK: "unknown"}.get(source, "presets")
    handler = (check.handler if check else None) or endpoint
    return _Field(name, timed(handler, timing), why, setting, annotation)


def _startup(
    container: Container,
    handler: Json,
    live: Probe,
    budget: StartupBudget,
    settings: StandardProbes,
    because: str = "",
) -> _Field:
    """A startupProbe that lasts for the startup budget, and at least until `live` would fail."""
    timeout = max(settings.timeout, live.timeout)
    period = max(settings.startup_period, timeout)
    failures = min(-(-max(budget.seconds, live.startup_deadline) // period), _MAX_FAILURES)
    timing = every(period, timeout, failures)
    seconds = timing.give_up

    def annotation() -> str:
        expected = int(seconds / settings.startup_factor)
        return f"{_container_key(EXPECTED_START, container)}={expected}s" if expected <= MAX_START else ""

    return _Field(
        "startupProbe",
        timed(handler, timing),
        lambda: f"{in_words(seconds)}: {budget.why()}{because}{_cost(seconds, budget)}",
        budget.setting,
        annotation,
    )


def _written(pod: PodView, container: Container, *keys: str) -> str:
    """The first of the annotations that the pod has for a container, with its value; empty without one."""
    written = pod.typed.metadata.annotations
    named = (own for key in keys for own in (f"{key}.{container.name}", key) if own in written)
    return next((f"{own}={written[own]}" for own in named), "")


def _cost(seconds: int, budget: StartupBudget) -> str:
    """The cost of a long budget, and how to make it shorter."""
    if seconds < _LONG_BUDGET or budget.annotated:
        return ""
    volume = "A volume that keeps the download halves this; the" if budget.fetches else "The"
    return (
        f". If a start hangs, the kubelet restarts it only after {in_words(seconds)}. "
        f"{volume} annotation {EXPECTED_START} sets the budget"
    )


def _asked(handler: Json) -> str:
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


def _container_key(key: str, container: Container) -> str:
    """The annotation's key for one container; the plain key if that would be too long for the API server."""
    own = f"{key}.{container.name}"
    return own if is_label_key(own) else key


MUTATOR: Final = Mutator(
    "standard-probes", StandardProbes, mutate=mutate, advise=advise, kinds=(POD,), after=("model-puller",)
)


_LIVENESS: Final = "livenessProbe"
_STARTUP: Final = "startupProbe"


def looks_injected(pod: PodView, container: Container, field: str, facts: Facts) -> bool:
    """Whether standard-probes adds the same probe at `field` to the pod without it.

    Injected probes in a Pod, and in a file that `chassis fix` has written, look like the user's. They are
    what the webhook recommends, so rules do not report them.
    """
    if container.spec.get(field) is None:
        return False
    return facts.pod_cache(pod).once_for((container, field), _looks_injected, pod, container, field, facts)


def _looks_injected(pod: PodView, container: Container, field: str, facts: Facts) -> bool:
    # A startupProbe follows from liveness, which may be injected with it.
    missing = ((field,), (_STARTUP, _LIVENESS)) if field == _STARTUP else ((field,),)
    return any(_added_again(pod, container, field, fields, facts) for fields in missing)


def _added_again(
    pod: PodView, container: Container, field: str, missing: tuple[str, ...], facts: Facts
) -> bool:
    kept = {key: value for key, value in container.spec.items() if key not in missing}
    # Without the other containers: otherwise the cost would be quadratic in their number.
    alone = {**pod.json["spec"], "containers": [], "initContainers": [], container.list: [kept]}
    mutated = mutate({**pod.json, "spec": alone}, facts.settings(StandardProbes), facts)
    return any(each.spec.get(field) == container.spec[field] for each in facts.view(mutated).containers)
