"""The mutator standard-probes: which probes it injects, with which timing, and why.

standard-probes.md documents it; `policies.probes.advice` has its warnings.
"""

from __future__ import annotations

import math
from typing import Any, Final

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
from policies.core.reasons import UNREAD, Reasons, in_words, times
from policies.kube import probe_defaults
from policies.kube.group_kinds import POD
from policies.kube.json import Json, dig, integer, mapping, maps, text
from policies.kube.names import is_label_key
from policies.kube.pods import Container, Role, with_container
from policies.probes.advice import advise
from policies.probes.canary import annotated_progress, body_variable
from policies.probes.copied import killed_start, startup_check
from policies.probes.endpoints import preset_health
from policies.probes.health import (
    ANNOTATION,
    FALLBACK,
    MIRRORED,
    AnnotationError,
    handler_of,
    health_to_inject,
)
from policies.probes.liveness_program import (
    Check,
    can_watch_start,
    checked_progress,
    is_program,
    patience,
    progress_check,
    watched_start,
)
from policies.probes.serving import is_kuberay_container, serving_containers, waits_for
from policies.probes.standard_probes_settings import Liveness, StandardProbes
from policies.probes.startup_budget import MAX_START, Budget, budget_of
from policies.probes.training_progress import progress_of

_BLOCKING_FAILURES: Final = 3
"""The failureThreshold of a livenessProbe whose timeout covers the requests that are served before it."""
_LONG_TIMEOUT: Final = 60
_LONG_BUDGET: Final = 2 * 3600
"""Seconds. From this startup budget on, progress detects a hung start, or the reason names the cost."""
_MAX_FAILURES: Final = 2**31 - 1
"""The API's failureThreshold is an int32, and users write the largest one for "never"."""


def mutate(obj: Json, settings: StandardProbes, facts: Facts, why: Reasons = UNREAD) -> Json:
    """Add the missing probes of serving containers, and a startupProbe to each container whose livenessProbe
    would end the start."""
    pod = facts.view(obj)
    if pod.completes:
        return _with_progress(pod, facts, why)
    serving = {container.name for container in serving_containers(pod, facts)}
    changed = obj
    for container in pod.running:
        # Computed from the original pod: its facts are cached, and injected probes do not count.
        filled = container
        if container.name in serving:
            filled = _with_missing_probes(pod, container, settings, facts, why)
        spec = _with_startup_probe(pod, filled, settings, facts, why)
        changed = with_container(changed, container, spec)
    return changed


def _with_progress(pod: PodView, facts: Facts, why: Reasons) -> Json:
    """A training pod with livenessProbes by the progress that its annotations name."""
    changed = pod.json
    for container in pod.running:
        progress = progress_of(pod, container, facts)
        if progress is None or container.spec.get("livenessProbe") is not None:
            continue
        spec = {**container.spec, "livenessProbe": progress.probe}
        changed = with_container(changed, container, spec)
        why.give(
            f"{container.path}.livenessProbe",
            f"ends the container when nothing was written to {progress.path} for "
            f"{in_words(progress.silence)}, so that the retries of the Job begin",
            annotation=_container_key(TRAINING_PROGRESS, container),
        )
    return changed


def _with_missing_probes(
    pod: PodView, container: Container, settings: StandardProbes, facts: Facts, why: Reasons
) -> Container:
    spec = container.spec
    live, ready, startup = (spec.get(name) for name in ("livenessProbe", "readinessProbe", "startupProbe"))
    if live is not None and (ready is not None or is_kuberay_container(pod, container, facts)):
        return container
    try:
        found = health_to_inject(pod, container, settings, facts)
    except AnnotationError:
        return container
    timeout = _timeout(container, settings)
    group_waits = waits_for(pod, container, facts) is not Waits.NO
    added: Json = {}
    if ready is None and found.ready is not None and not group_waits:
        ready = added["readinessProbe"] = _readiness(found.ready, settings, timeout, live)
    if live is None and found.live is not None:
        budget = _budget(pod, container, ready, settings, facts)
        live = added["livenessProbe"] = _liveness(found.live, settings, timeout, ready)
        watches_start = (
            not group_waits
            and startup is None
            and ready is not None
            and _may_watch_start(pod, container, budget, facts)
        )
        known = found.live_source.startswith("preset ") or annotated_progress(pod, container, facts)
        endpoint = found.live if known else None
        check = progress_check(pod, container, endpoint, facts, budget.seconds if watches_start else 0)
        program = check.handler if check else None
        grouped = group_waits or in_leader_worker_set(pod.typed.metadata)
        if grouped:
            live = _with_more_failures(live)
        if group_waits and startup is None:
            live["initialDelaySeconds"] = budget.seconds * GROUP_FACTOR
        elif startup is None and (found.live_source == MIRRORED or container.role is Role.SIDECAR):
            live["initialDelaySeconds"] = budget.seconds
        elif startup is None and not (watches_start and program):
            probe = added["startupProbe"] = _startup(live, settings, budget.seconds)
            _explain_startup(why, container, probe, budget, settings)
        live = _with_live_timeout(live, found.live, container, settings)
        if check and program:
            delay = {key: live[key] for key in ("initialDelaySeconds",) if key in live}
            live = {**_liveness(program, settings, check.timeout, ready), **delay}
            live = _with_more_failures(live) if grouped else live
        added["livenessProbe"] = live
        _explain(why, pod, container, "livenessProbe", live, found.live_source, check)
        variable = body_variable(pod, container, facts) if check and program else None
        if variable is not None:
            added["env"] = [*maps(spec, "env"), variable]
            why.give(
                f"{container.path}.env[{variable['name']}]",
                "the body of its canary, from the ConfigMap that an annotation names",
                annotation=lambda: _written(pod, container, CANARY_BODY),
            )
    if "readinessProbe" in added:
        _explain(why, pod, container, "readinessProbe", added["readinessProbe"], found.ready_source)
    return container.with_spec({**spec, **added}) if added else container


def _with_startup_probe(
    pod: PodView, container: Container, settings: StandardProbes, facts: Facts, why: Reasons
) -> Json:
    """The container with a startupProbe, if its livenessProbe would end a start of the expected length."""
    live, expected = container.spec.get("livenessProbe"), killed_start(pod, container, facts)
    if expected is None:
        return container.spec
    check, why_not = startup_check(pod, container, live, facts)
    if not check:
        return container.spec
    budget = budget_of(pod, container, facts)
    timing = {key: value for key, value in mapping(live).items() if key not in handler_of(live)}
    probe = _startup({**timing, **check}, settings, budget.seconds)
    because = f"; without it, your livenessProbe kills the container during its start of {in_words(expected)}"
    if why_not:
        because = f"; {_asked(probe)} instead of its livenessProbe, since {why_not}"
    _explain_startup(why, container, probe, budget, settings, because)
    return {**container.spec, "startupProbe": probe}


def _may_watch_start(pod: PodView, container: Container, budget: Budget, facts: Facts) -> bool:
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


def _readiness(handler: Json, settings: StandardProbes, timeout: int, live: Any) -> Json:
    """A readinessProbe that fails before the container's livenessProbe does."""
    period, failures = max(settings.readiness_period, timeout), settings.readiness_failures
    if live is not None and period * failures >= probe_defaults.give_up(live):
        period = max(1, min(period, probe_defaults.give_up(live) // (failures + 1)))
        failures = max(1, min(failures, (probe_defaults.give_up(live) - 1) // period))
    return probe_defaults.timed(handler, period, min(timeout, period), failures)


def _liveness(handler: Json, settings: StandardProbes, timeout: int, ready: Any) -> Json:
    """A livenessProbe that takes more than twice as long as readiness to fail."""
    timeout = max(timeout, integer(ready, "timeoutSeconds", default=1))
    period = max(settings.liveness_period, timeout, probe_defaults.period(ready))
    shortest = 2 * probe_defaults.give_up(ready) if ready is not None else 0
    failures = min(max(settings.liveness_failures, shortest // period + 1), _MAX_FAILURES)
    return probe_defaults.timed(handler, period, timeout, failures)


def _with_live_timeout(live: Json, handler: Json, container: Container, settings: StandardProbes) -> Json:
    """A livenessProbe with the preset's `liveTimeout`, if the server answers after earlier requests."""
    server, known = settings.recogniser.server(container), preset_health(container, settings)
    timeout = (server and server.preset.live_timeout) or 0
    if timeout <= live["timeoutSeconds"] or known is None or handler != known.live:
        return live
    period = max(live["periodSeconds"], timeout)
    failures = max(_BLOCKING_FAILURES, -(-probe_defaults.give_up(live) // period))
    return probe_defaults.timed(live, period, timeout, failures)


def _with_more_failures(live: Json) -> Json:
    """A livenessProbe for a member of a group, whose restart may restart the group."""
    return {**live, "failureThreshold": min(live["failureThreshold"] * GROUP_FACTOR, _MAX_FAILURES)}


def _startup(live: Any, settings: StandardProbes, budget: int) -> Json:
    """A startupProbe with the handler of liveness that lasts for the startup budget."""
    timeout = max(settings.timeout, integer(live, "timeoutSeconds", default=1))
    period = max(settings.startup_period, timeout)
    budget = max(budget, probe_defaults.startup_deadline(live))
    return probe_defaults.timed(handler_of(live), period, timeout, min(-(-budget // period), _MAX_FAILURES))


def _budget(pod: PodView, container: Container, ready: Any, settings: StandardProbes, facts: Facts) -> Budget:
    """The startup budget, longer than the delay of readiness."""
    delay = min(integer(ready, "initialDelaySeconds", default=0), MAX_START)
    budget, least = budget_of(pod, container, facts), math.ceil(delay * settings.startup_factor)
    if budget.seconds >= least:
        return budget
    factor = times(settings.startup_factor)
    return Budget(least, lambda: f"{factor} the {in_words(delay)} that readiness waits", "startupFactor")


# --- reasons -----------------------------------------------------------------------------------------

_PATHS: Final = {"readinessProbe": READY_PATH, "livenessProbe": LIVE_PATH}


def _explain(
    why: Reasons,
    pod: PodView,
    container: Container,
    name: str,
    probe: Json,
    source: str,
    check: Check | None = None,
) -> None:
    """Give the reason for a liveness or readiness probe."""

    def reason() -> str:
        action = {"livenessProbe": "a restart", "readinessProbe": "no traffic"}[name]
        effect = f"{action} after {in_words(probe_defaults.give_up(probe))} of failures"
        if source == MIRRORED:
            return f"{_asked(probe)}, as readiness does, since that path shows that it is alive; {effect}"
        if source == FALLBACK:
            return f"{_asked(probe)}, since its health endpoint is unknown; {effect}"
        who = "by its annotation" if source == ANNOTATION else source
        if is_program(probe):
            asked = checked_progress(probe)
            start = watched_start(probe)
            limit = (
                f"; no startupProbe: a start of at most {in_words(start)} that does something"
                if start
                else ""
            )
            return f"{asked} ({who}); a restart after {patience(probe)} without progress{limit}"
        blind = ""
        if check is not None:
            blind = f"; it passes even if the server hangs, since progress is not checked: {check.why_not}"
        waits = ", since its health endpoint waits behind inferences" if "tcpSocket" in probe else ""
        if name == "livenessProbe" and probe_defaults.timeout(probe) >= _LONG_TIMEOUT:
            waits = f", for up to {in_words(probe_defaults.timeout(probe))}, since it waits behind inferences"
        return f"{_asked(probe)}{waits} ({who}); {effect}{blind}"

    def annotation() -> str:
        if source in (MIRRORED, FALLBACK):
            return ""  # an annotation would also add a startupProbe
        if is_program(probe):
            progress = f"{_container_key(LIVENESS, container)}={Liveness.PROGRESS}"
            return _written(pod, container, CANARY) or progress
        if source == ANNOTATION and (own := _written(pod, container, _PATHS[name], HEALTH_PATH, HEALTH_PORT)):
            return own
        if container.spec.get("livenessProbe") is not None:
            return ""  # the rules would compare the user's own livenessProbe with the annotation
        path = text(probe, "httpGet", "path")
        return f"{_container_key(_PATHS[name], container)}={path}" if path else ""

    setting = {MIRRORED: "mirror", FALLBACK: "unknown"}.get(source, "presets")
    if is_program(probe):
        setting = "liveness"
    why.give(f"{container.path}.{name}", reason, setting=setting, annotation=annotation)


def _written(pod: PodView, container: Container, *keys: str) -> str:
    """The first of the annotations that the pod has for a container, with its value; empty without one."""
    written = pod.typed.metadata.annotations
    named = (own for key in keys for own in (f"{key}.{container.name}", key) if own in written)
    return next((f"{own}={written[own]}" for own in named), "")


def _explain_startup(
    why: Reasons,
    container: Container,
    probe: Json,
    budget: Budget,
    settings: StandardProbes,
    because: str = "",
) -> None:
    seconds = probe_defaults.give_up(probe)

    def annotation() -> str:
        expected = int(seconds / settings.startup_factor)
        return f"{_container_key(EXPECTED_START, container)}={expected}s" if expected <= MAX_START else ""

    why.give(
        f"{container.path}.startupProbe",
        lambda: f"{in_words(seconds)}: {budget.why()}{because}{_cost(seconds, budget)}",
        setting=budget.setting,
        annotation=annotation,
    )


def _cost(seconds: int, budget: Budget) -> str:
    """The cost of a long budget, and how to make it shorter."""
    if seconds < _LONG_BUDGET or budget.annotated:
        return ""
    volume = "A volume that keeps the download halves this; the" if budget.fetches else "The"
    return (
        f". If a start hangs, the kubelet restarts it only after {in_words(seconds)}. "
        f"{volume} annotation {EXPECTED_START} sets it"
    )


def _asked(probe: Json) -> str:
    """A probe's handler as a phrase."""
    (kind, action), *_ = handler_of(probe).items()
    match kind:
        case "httpGet":
            return f"GET {text(action, 'path')} on port {dig(action, 'port')}"
        case "grpc":
            return f"gRPC health on port {dig(action, 'port')}"
        case "tcpSocket":
            return f"an open port {dig(action, 'port')}"
    return "its command"


def _container_key(key: str, container: Container) -> str:
    """The annotation's key for one container; the plain key if that would be too long for the API server."""
    own = f"{key}.{container.name}"
    return own if is_label_key(own) else key


MUTATOR: Final = Mutator(
    "standard-probes", StandardProbes, mutate=mutate, advise=advise, kinds=(POD,), after=("model-puller",)
)
