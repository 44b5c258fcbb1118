"""The warnings of standard-probes: invalid annotations, and containers that get no probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from policies.core.annotations import (
    CANARY,
    CANARY_BODY,
    CANARY_TIME,
    EXPECTED_START,
    LIVE_PATH,
    LIVENESS,
    MODEL_SIZE,
    OF_HEALTH,
    PREFIX,
    TRAINING_PROGRESS,
    resembled,
)
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.groups import Waits, leads
from policies.core.pod_view import PodView
from policies.core.reasons import in_words
from policies.kube import quantities as units
from policies.kube.json import Json, dig
from policies.kube.names import listed
from policies.kube.pods import Container, Role
from policies.probes.canary import parse_body, parse_canary, parse_time, requested_canary
from policies.probes.copied import killed_start, startup_check
from policies.probes.endpoints import preset_health
from policies.probes.health import (
    AnnotationError,
    annotated_health,
    annotations_apply_to,
    doubt_in,
    health_to_inject,
    not_for_liveness,
)
from policies.probes.liveness_program import (
    NoProgressCheck,
    is_program,
    parse_liveness,
    progress_check,
    requested_liveness,
)
from policies.probes.probe import is_sendable
from policies.probes.serving import (
    is_kuberay_container,
    istio_came_first,
    istio_leaves_probes,
    recognised,
    serving_containers,
    waits_for,
)
from policies.probes.standard_probes_settings import Liveness, StandardProbes
from policies.probes.training_progress import parse_progress


def advise(obj: Json, settings: StandardProbes, facts: Facts) -> Iterator[Finding]:
    """Report invalid annotations, and containers that get no probes."""
    pod = facts.view(obj)
    yield from _invalid_annotations(pod, facts)
    yield from _no_startup(pod, facts)
    for container in serving_containers(pod, facts):
        try:
            annotated_health(pod, container, facts)
        except AnnotationError as error:
            yield from error.findings
            continue
        yield from _leader_probes(pod, container, facts)
        if container.spec.get("readinessProbe") is None:
            waits = waits_for(pod, container, facts)
            if waits is not Waits.NO and health_to_inject(pod, container, settings, facts).ready:
                yield _no_readiness(container, waits)
        if unfit := not_for_liveness(pod, container, facts):
            key, asks = unfit
            yield Finding(
                f"metadata.annotations[{key}]",
                f"Annotation {key} is not used for the livenessProbe of container {container.name}: this "
                f"path checks {asks.of}. If that fails, a restart doesn't help.",
                f"Set {LIVE_PATH} to a path that checks only the process, or write the livenessProbe.",
            )
        if container.spec.get("livenessProbe") is None and not is_kuberay_container(pod, container):
            yield _no_liveness(pod, container, facts)
        elif finding := _no_progress_check(pod, container, facts):
            yield finding


def _no_startup(pod: PodView, facts: Facts) -> Iterator[Finding]:
    """Report a livenessProbe that ends the start, or may do so, and gets no startupProbe."""
    for container in () if pod.completes else pod.running:
        expected = killed_start(pod, container, facts)
        if expected is None:
            continue
        probe = container.spec["livenessProbe"]
        check, why_not = startup_check(pod, container, probe, facts)
        if check:
            continue
        yield Finding(
            _path(container),
            f"Container {container.name} gets no startupProbe for its start of {in_words(expected)}: its "
            f"livenessProbe is not copied, since {why_not}.",
            "Add a startupProbe with a check that works, or set the annotation mlchassis.dev/health-path.",
            covered_by="liveness-kills-slow-start" if is_sendable(container, probe) else "probe-port-unknown",
        )


def _leader_probes(pod: PodView, container: Container, facts: Facts) -> Iterator[Finding]:
    """Report the user's probes on a leader whose workers wait for it."""
    if leads(pod, facts) is not Waits.YES:
        return
    for name in ("readinessProbe", "startupProbe"):
        if container.spec.get(name):
            yield Finding(
                f"{_path(container)}.{name}",
                f"startupPolicy is LeaderReady, so the workers are created only once the leader is Ready. If "
                f"{container.name} answers its {name} only with its workers, the group never starts.",
                "Set startupPolicy: LeaderCreated, or probe something that does not need the workers.",
            )
            return


def _path(container: Container) -> str:
    return f"spec.{container.list}[{container.index}]"


def _no_readiness(container: Container, waits: Waits) -> Finding:
    why = (
        "its group may form only after it is Ready"
        if waits is Waits.YES
        else "it is not known whether its group can form before it is Ready"
    )
    return Finding(
        _path(container),
        f"Container {container.name} gets no readinessProbe and no startupProbe: {why}.",
        "Add a readinessProbe if the group forms before this pod is Ready: startupPolicy LeaderCreated, or "
        "podManagementPolicy Parallel of a StatefulSet, and a Service with publishNotReadyAddresses by which "
        "the others find it.",
    )


def _no_progress_check(pod: PodView, container: Container, facts: Facts) -> Finding | None:
    """Report that an annotation asks for liveness by progress, which is not injected."""
    probe = container.spec.get("livenessProbe")
    canary = requested_canary(pod, container, facts)
    asked = requested_liveness(pod, container) is Liveness.PROGRESS
    if not (asked or canary) or is_program(probe):
        return None
    if canary and not asked:
        return Finding(
            f"metadata.annotations[{_key(pod, container, CANARY)}]",
            f"Container {container.name} has another livenessProbe, so {canary} is never sent.",
            "Remove that livenessProbe, or the annotation.",
        )
    key = _key(pod, container, LIVENESS)
    health = preset_health(container, facts.settings(StandardProbes))
    check = progress_check(pod, container, health.live if health else None, facts)
    why = check.why if isinstance(check, NoProgressCheck) else "it has another livenessProbe"
    return Finding(
        f"metadata.annotations[{key}]",
        f"Container {container.name} gets no liveness by progress: {why}. Its health "
        "endpoint answers even if the server hangs.",
        f"Change that, or set the annotation {LIVENESS} to endpoint.",
    )


def _key(pod: PodView, container: Container, annotation: str) -> str:
    """The annotation's key that applies to a container."""
    own = f"{annotation}.{container.name}"
    return own if own in pod.typed.metadata.annotations else annotation


def _invalid_annotations(pod: PodView, facts: Facts) -> Iterator[Finding]:
    """Report annotations of this policy that name no container, have an invalid value, or are misspelt."""
    if not pod.chassis_annotations:
        return
    if pod.completes:
        yield from _invalid_progress(pod)
        return
    names = {container.name for container in pod.containers}
    known = listed(sorted(names))
    serving = serving_containers(pod, facts)
    annotations = pod.chassis_annotations
    for key, value in annotations.items():
        base, suffix = _base_and_suffix(key)
        path = f"metadata.annotations[{key}]"
        if base is None:
            if meant := _misspelt(key):
                yield Finding(path, f"Annotation {key} is unknown and has no effect.", f"Use {meant}.")
        elif suffix and suffix not in names:
            yield Finding(
                path,
                f"Annotation {key} names a container that the pod doesn't have.",
                f"The containers are {known}.",
            )
        elif error := _invalid_value(base, value):
            yield Finding(path, f"Annotation {key} has no effect: {error}.", "Correct the value.")
        elif base in _OF_CANARY and not any(_base_and_suffix(each)[0] == CANARY for each in annotations):
            yield Finding(path, f"Annotation {key} has no effect without {CANARY}.", f"Add {CANARY}.")
        elif (
            base not in _OF_ALL
            and not suffix
            and serving
            and not any(annotations_apply_to(pod, container, facts) for container in serving)
        ):
            yield Finding(
                path,
                f"Annotation {key} could mean any of {listed(item.name for item in serving)}.",
                f"Use {key}.{serving[0].name}, with the name of the container that you mean.",
            )


def _invalid_progress(pod: PodView) -> Iterator[Finding]:
    """Report annotations about the progress of a training that have no effect."""
    names = {container.name for container in pod.containers if container.role is Role.MAIN}
    for key, value in pod.chassis_annotations.items():
        base, _, suffix = key.partition(f"{TRAINING_PROGRESS}")
        if base or (suffix and not suffix.startswith(".")):
            continue
        path = f"metadata.annotations[{key}]"
        if error := _invalid_value(TRAINING_PROGRESS, value):
            yield Finding(path, f"Annotation {key} has no effect: {error}.", "Correct the value.")
        elif suffix[1:] not in names and (suffix or len(names) > 1):
            hint = f"Use {TRAINING_PROGRESS}.{min(names, default='')}, with the name of a main container."
            yield Finding(path, f"Annotation {key} names none of the pod's main containers.", hint)


_PARSED: Final[dict[str, Callable[[object], object]]] = {
    EXPECTED_START: units.parse_duration,
    MODEL_SIZE: units.parse_bytes,
    LIVENESS: parse_liveness,
    CANARY: parse_canary,
    CANARY_BODY: parse_body,
    CANARY_TIME: parse_time,
    TRAINING_PROGRESS: parse_progress,
}
_OF_ALL: Final = (EXPECTED_START, MODEL_SIZE, LIVENESS)
"""Annotations that apply to every container, unless they name one."""
_OF_CANARY: Final = (CANARY_BODY, CANARY_TIME)


def _invalid_value(base: str, value: object) -> str:
    """Why the value of an annotation cannot be read; empty if it can."""
    try:
        _PARSED.get(base, str)(value)
    except ValueError as error:
        return str(error)
    return ""


def _base_and_suffix(key: str) -> tuple[str | None, str]:
    """`mlchassis.dev/health-path.ranker` -> the annotation and the container; None for other annotations."""
    for base in OF_HEALTH:
        if key == base or key.startswith(f"{base}."):
            return base, key[len(base) + 1 :]
    return None, ""


def _misspelt(key: str) -> str | None:
    """The annotation of this policy that a key resembles."""
    if not key.startswith(PREFIX):
        return None
    name, dot, container = key.removeprefix(PREFIX).partition(".")
    close = resembled(name)
    return f"{close}{dot}{container}" if close in OF_HEALTH else None


def _no_liveness(pod: PodView, container: Container, facts: Facts) -> Finding:
    """Report that a container gets no livenessProbe, and why."""
    path = _path(container)
    if istio_came_first(pod):
        return Finding(
            path,
            f"Container {container.name} gets no liveness probe: Istio's proxy is already in the pod, and "
            "it would refuse a probe that Istio hasn't rewritten.",
            "Make this webhook run before Istio's. The API server calls configurations in the order of "
            "their names.",
        )
    if istio_leaves_probes(pod):
        return Finding(
            path,
            f"Container {container.name} gets no liveness probe: an annotation keeps Istio from rewriting "
            "probes, and with strict mutual TLS its proxy would refuse the kubelet.",
            "Remove the annotation sidecar.istio.io/rewriteAppHTTPProbers, or write the probe yourself.",
        )
    server = recognised(container, facts)
    why = "its health endpoint is unknown"
    hint = "Annotate the pod template with mlchassis.dev/health-path"
    if server is not None and (doubt := doubt_in(pod, container, facts)):
        why, hint = f"it runs {server.name}, and {doubt[0]}", doubt[1]
    elif dig(container.spec, "readinessProbe", "exec") is not None:
        why = "its readinessProbe runs a command, and a failing command must not restart it"
    elif container.spec.get("readinessProbe") is not None:
        why = "its readinessProbe shows whether it can take traffic, not whether it is alive"
        hint = "Add a livenessProbe, or annotate the pod template with mlchassis.dev/live-path"
    rule = "readiness-without-liveness" if container.spec.get("readinessProbe") else "liveness-missing"
    sentence = f"Container {container.name} gets no liveness probe: {why}."
    return Finding(path, sentence, f"{hint}.", covered_by=rule)
