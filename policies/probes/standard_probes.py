"""The mutator standard-probes: which probes it injects, with which timing, and why.

standard-probes.md documents it; `policies.probes.probe_fields` has its reasons, and `policies.probes.advice`
its warnings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from policies.core.annotations import CANARY_BODY, TRAINING_PROGRESS
from policies.core.contracts import Mutator
from policies.core.facts import Facts
from policies.core.groups import GROUP_FACTOR, Waits, in_leader_worker_set
from policies.core.pod_view import PodView
from policies.core.reasons import NO_REASONS, Reasons, in_words, times
from policies.kube.group_kinds import POD
from policies.kube.json import Json, mapping, maps, replaced
from policies.kube.objects.pods import Probe
from policies.kube.pods import Container, Role, probe_every, with_container
from policies.kube.quantities import whole_number
from policies.probes.advice import advise
from policies.probes.canary import annotated_progress, body_variable
from policies.probes.copied import killed_start, startup_check
from policies.probes.endpoints import Source, preset_health
from policies.probes.health import MIRRORED, AnnotationError, health_to_inject
from policies.probes.liveness_program import (
    ProgressCheck,
    can_watch_start,
    progress_check,
)
from policies.probes.probe import LIVENESS, STARTUP
from policies.probes.probe_fields import (
    LONG_BUDGET,
    MAX_FAILURES,
    AddedField,
    asked,
    container_key,
    probe_field,
    startup_field,
    written_annotation,
)
from policies.probes.serving import is_kuberay_container, serving_containers, waits_for
from policies.probes.standard_probes_settings import StandardProbes
from policies.probes.startup_budget import MAX_START, StartupBudget, budget_of, expected_start
from policies.probes.training_progress import progress_of

_BLOCKING_FAILURES: Final = 3
"""The failureThreshold of a livenessProbe whose timeout covers the requests that are served before it."""


def mutate(obj: Json, settings: StandardProbes, facts: Facts, reasons: Reasons = NO_REASONS) -> Json:
    """Add the missing probes of serving containers, and a startupProbe to each container whose livenessProbe
    would end the start. In a pod that runs to completion, only an annotation adds a probe."""
    pod, changed = facts.view(obj), obj
    for container in pod.running:
        # Computed from the original pod: its facts are cached, and injected probes do not count.
        fields = list(added_fields(pod, container, settings, facts))
        if fields:
            added = {each.name: each.value for each in fields}
            changed = with_container(changed, container, {**container.spec, **added})
        for each in fields:
            place = f"{container.path}.{each.name}" + (f"[{each.element}]" if each.element else "")
            reasons.give(place, each.why, setting=each.setting, annotation=each.annotation)
    return changed


def added_fields(
    pod: PodView, container: Container, settings: StandardProbes, facts: Facts
) -> Iterator[AddedField]:
    """The fields that are added to a container of a pod."""
    if pod.completes:
        yield from _training_liveness(pod, container, facts)
        return
    if container in serving_containers(pod, facts):
        yield from _missing_probes(pod, container, settings, facts)
    yield from _startup_before_written_liveness(pod, container, settings, facts)


def _training_liveness(pod: PodView, container: Container, facts: Facts) -> Iterator[AddedField]:
    """The livenessProbe of a training by the progress that its annotation names."""
    progress = progress_of(pod, container)
    if progress is None or container.spec.get("livenessProbe") is not None:
        return
    start = expected_start(pod, container, facts) or 0
    yield AddedField(
        "livenessProbe",
        progress.probe(start),
        f"ends the container if nothing was written to {progress.path} for "
        f"{in_words(progress.silence)}, so that the Job retries",
        annotation=container_key(TRAINING_PROGRESS, container),
    )


def _missing_probes(
    pod: PodView, container: Container, settings: StandardProbes, facts: Facts
) -> Iterator[AddedField]:
    """The probes of a serving container that its author left out."""
    live, ready = container.typed.liveness_probe, container.typed.readiness_probe
    if live is not None and (ready is not None or is_kuberay_container(pod, container)):
        return
    try:
        found = health_to_inject(pod, container, settings, facts)
    except AnnotationError:
        return
    readiness, waits = None, waits_for(pod, container, facts) is not Waits.NO
    if ready is None and found.ready is not None and not waits:
        least = _least_answer(container, settings)
        ready = _readiness(settings, _timeout(container, settings), live, least)
        readiness = probe_field(pod, container, "readinessProbe", found.ready, ready, found.ready_source)
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
    source: Source | None,
    ready: Probe | None,
    settings: StandardProbes,
    facts: Facts,
    *,
    group_waits: bool,
) -> Iterator[AddedField]:
    """The livenessProbe, and the field that gives the start its time: a startupProbe or a delay, unless the
    program does.

    `endpoint` is the handler that asks the server, and `ready` the numbers of its readinessProbe.
    `group_waits`: whether the other pods of its group may wait until this one is Ready.
    """
    grouped = group_waits or in_leader_worker_set(pod.typed.metadata)
    budget = _budget(pod, container, ready, settings, facts)
    has_startup, delay = container.typed.startup_probe is not None, 0
    if not has_startup and group_waits:
        delay = budget.seconds * GROUP_FACTOR
    elif not has_startup and (source == MIRRORED or container.role is Role.SIDECAR):
        delay = budget.seconds
    watched = 0
    if not (has_startup or delay) and ready is not None and _may_watch_start(pod, container, budget, facts):
        watched = budget.seconds
    known = (source is not None and source.is_preset) or annotated_progress(pod, container, facts)
    check = progress_check(pod, container, endpoint if known else None, facts, watched)
    program = check if isinstance(check, ProgressCheck) else None
    timing = _liveness(settings, _timeout(container, settings), ready, grouped=grouped)
    if not (has_startup or delay or (watched and program)):
        yield startup_field(container, endpoint, timing, budget, settings)
    if program:
        timing = _liveness(settings, program.timeout, ready, grouped=grouped)
    else:
        timing = _with_patience(timing, endpoint, container, settings)
    timing = replace(timing, initial_delay_seconds=delay)
    yield probe_field(pod, container, "livenessProbe", endpoint, timing, source, check)
    variable = body_variable(pod, container, facts) if program else None
    if variable is not None:
        yield AddedField(
            "env",
            [*maps(container.spec, "env"), variable],
            "the body of its canary, from the ConfigMap that an annotation names",
            annotation=lambda: written_annotation(pod, container, CANARY_BODY),
            element=variable["name"],
        )


def _startup_before_written_liveness(
    pod: PodView, container: Container, settings: StandardProbes, facts: Facts
) -> Iterator[AddedField]:
    """A startupProbe, if the author's livenessProbe would end a start of the expected length."""
    live = container.typed.liveness_probe
    if live is None or killed_start(pod, container, facts) is None:
        return
    handler, why_not = startup_check(pod, container, container.spec["livenessProbe"], facts)
    if not handler:
        return
    killed = in_words(live.startup_deadline)
    because = f"; without it, your livenessProbe kills a start that takes longer than {killed}"
    if why_not:
        because = f"; {asked(handler)} instead of its livenessProbe, since {why_not}"
    yield startup_field(container, handler, live, budget_of(pod, container, facts), settings, because)


def _may_watch_start(pod: PodView, container: Container, budget: StartupBudget, facts: Facts) -> bool:
    """Whether a program may replace the startupProbe, to distinguish a hung start from a slow one."""
    return (
        budget.seconds >= LONG_BUDGET
        and not budget.annotated
        and container.role is Role.MAIN
        and can_watch_start(pod, container, facts)
    )


# --- timing --------------------------------------------------------------------------------------


def _timeout(container: Container, settings: StandardProbes) -> int:
    server = settings.recogniser.server(container)
    return max(settings.timeout, (server and server.preset.timeout) or 0)


def _readiness(settings: StandardProbes, timeout: int, live: Probe | None, least: int) -> Probe:
    """The numbers of a readinessProbe that fails before the container's livenessProbe does, but never within
    the time that each answer takes (`least`, in seconds)."""
    period, failures = max(settings.readiness_period, timeout), settings.readiness_failures
    # An overloaded server accepts connections, so a check of its port does not fail first.
    if live is not None and live.tcp_socket is None and period * failures >= live.give_up:
        period = max(least + 1, min(period, live.give_up // (failures + 1)))
        failures = max(1, min(failures, (live.give_up - 1) // period))
    return probe_every(period, min(timeout, period), failures)


def _least_answer(container: Container, settings: StandardProbes) -> int:
    """Seconds that each answer of the recognised server to a check takes."""
    server = settings.recogniser.server(container)
    busy = server.preset.busy if server is not None else None
    return busy.least if busy is not None else 0


def _liveness(settings: StandardProbes, timeout: int, ready: Probe | None, *, grouped: bool) -> Probe:
    """The numbers of a livenessProbe that takes more than twice as long as readiness to fail; longer for a
    member of a group, whose restart may restart the group."""
    shortest, known = (2 * ready.give_up, ready) if ready is not None else (0, Probe())
    timeout = max(timeout, known.timeout)
    period = max(settings.liveness_period, timeout, known.period)
    failures = max(settings.liveness_failures, shortest // period + 1)
    return probe_every(period, timeout, min(failures * (GROUP_FACTOR if grouped else 1), MAX_FAILURES))


def _with_patience(timing: Probe, endpoint: Json, container: Container, settings: StandardProbes) -> Probe:
    """The numbers with the preset's `liveTimeout` and `liveSilence`, for its own liveness endpoint, and not
    less than the time of its longest request if health checks wait behind requests."""
    server, known = settings.recogniser.server(container), preset_health(container, settings)
    if server is None:
        return timing
    silence = (server.longest_request or 0) if "httpGet" in endpoint else 0
    if known is not None and endpoint == known.live:
        timeout, usual = server.preset.live_timeout or 0, server.preset.live_silence
        if timeout > timing.timeout:
            period = max(timing.period, timeout)
            timing = probe_every(period, timeout, max(_BLOCKING_FAILURES, -(-timing.give_up // period)))
        longest = server.configured(server.preset.live_silence_flags, ()) if usual else None
        silence = max(silence, usual, whole_number(longest, 5) or 0)
    failures = -(-min(silence, MAX_START) // timing.period)
    return probe_every(timing.period, timing.timeout, max(timing.failures, failures))


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


_FEW: Final = 32
"""Containers. In a larger pod each is looked at without the others, since the cost would be quadratic."""


def looks_injected(pod: PodView, container: Container, field: str, facts: Facts) -> bool:
    """Whether standard-probes adds the same probe at `field` to the pod without it.

    Injected probes in a Pod, and in a file that `chassis fix` has written, look like the user's. They are
    what the webhook recommends, so rules do not report them.
    """
    if container.spec.get(field) is None:
        return False
    return facts.pod_caches[pod].once_for((container, field), _looks_injected, pod, container, field, facts)


def _looks_injected(pod: PodView, container: Container, field: str, facts: Facts) -> bool:
    # A startupProbe follows from liveness, which may be injected with it.
    missing = ((field,), (STARTUP, LIVENESS)) if field == STARTUP else ((field,),)
    return any(_added_again(pod, container, field, fields, facts) for fields in missing)


def _added_again(
    pod: PodView, container: Container, field: str, missing: tuple[str, ...], facts: Facts
) -> bool:
    kept = {key: value for key, value in container.spec.items() if key not in missing}
    spec = pod.json["spec"]
    if len(pod.containers) <= _FEW:
        spec, index = replaced(spec, (container.list, container.index), kept), container.index
    else:
        spec, index = {**spec, "containers": [], "initContainers": [], container.list: [kept]}, 0
    again = facts.view({**pod.json, "spec": spec})
    place = (container.list, index)
    return any(
        added.name == field and _stored(added.value) == _stored(container.spec[field])
        for each in again.running
        if (each.list, each.index) == place
        for added in added_fields(again, each, facts.settings(StandardProbes), facts)
    )


def _stored(probe: Json) -> Json:
    """A probe as the API server stores it: a pod is reviewed with its defaults, and a file without them."""
    filled = {**_DEFAULTS, **probe}
    for name, defaults in _OF_HANDLERS.items():
        if name in filled:
            filled[name] = {**defaults, **mapping(filled, name)}
    return filled


_DEFAULTS: Final = {"periodSeconds": 10, "timeoutSeconds": 1, "failureThreshold": 3, "successThreshold": 1}
_OF_HANDLERS: Final = {"httpGet": {"path": "/", "scheme": "HTTP"}, "grpc": {"service": ""}}


MUTATOR: Final = Mutator(
    "standard-probes", StandardProbes, mutate=mutate, advise=advise, kinds=(POD,), after=("model-puller",)
)
