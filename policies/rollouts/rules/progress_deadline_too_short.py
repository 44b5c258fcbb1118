"""progress-deadline-too-short: a deadline below the start that the pods' own probes allow."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.kserve import DEPLOYMENT_MODE
from policies.kube import quantities as units
from policies.kube.group_kinds import DEPLOYMENT, INFERENCE_SERVICE, KNATIVE_SERVICE, ROLLOUT
from policies.kube.json import Json, mapping
from policies.kube.objects.metadata import Object
from policies.kube.objects.pods import ContainerSpec, PodSpec, PodTemplateSpec
from policies.kube.objects.reading import read
from policies.kube.objects.workloads import Progressing
from policies.kube.pods import Role, with_container
from policies.probes.standard_probes import looks_injected
from policies.probes.startup_budget import Start, start_of

_PROBES: Final = ("readinessProbe", "livenessProbe", "startupProbe")
_DEFAULT_DEADLINE: Final = 600
"""Seconds; the default of the API server and of Argo Rollouts (utils/defaults of v1.8.3)."""
_NO_DEADLINE: Final = 2**31 - 1
"""The value that switches the deadline off."""
_OF_KNATIVE: Final = (KNATIVE_SERVICE, INFERENCE_SERVICE)
_DEADLINE: Final = "serving.knative.dev/progress-deadline"
"""On the template of a Service, and on an InferenceService. Knative scales a revision to zero that is not
active after it (`pkg/reconciler/autoscaling/kpa/scaler.go`)."""
_SERVERLESS: Final = ("Serverless", "Knative")


def check(target: Target, facts: Facts) -> Findings:
    if target.kind in _OF_KNATIVE:
        yield from _of_knative(target, facts)
        return
    spec = target.read(Progressing).spec
    given = spec.progress_deadline_seconds
    deadline = _DEFAULT_DEADLINE if given is None else given
    if deadline == _NO_DEADLINE or spec.paused or target.replicas < 1:
        return
    after = f"after {deadline} s{'' if given else ' (the default)'}, but"
    aborts = target.kind == ROLLOUT and spec.progress_deadline_abort
    failed = f"{'Argo Rollouts aborts the rollout' if aborts else 'The rollout counts as failed'} {after}"
    # The user's own template: the probes that the webhook injects are generous on purpose and do not count.
    own = read(_without_injected(mapping(target.spec, "template"), facts), PodTemplateSpec).spec
    slowest = _slowest_start(own)
    if slowest is not None and slowest[1] * 10 > deadline * 11:  # a tenth above is rounding
        name, seconds = slowest
        why = f"{failed} the probes of container {name} allow {seconds} s until it is ready."
    elif added := _start_beyond(own, target, deadline, facts):
        name, start = added
        seconds = start.seconds
        why = (
            f"{failed} container {name} takes about {seconds} s to start ({start.reason}), and the "
            "readinessProbe that the webhook adds to its pods waits for the start."
        )
    else:
        return
    yield Finding(
        "spec.progressDeadlineSeconds",
        why,
        f"Set spec.progressDeadlineSeconds above {seconds}, with room to pull the image.",
    )


def _of_knative(target: Target, facts: Facts) -> Findings:
    """A finding about a revision that Knative gives up before its model is loaded."""
    annotations = read(target.obj, Object).metadata.annotations
    if target.kind == INFERENCE_SERVICE and annotations.get(DEPLOYMENT_MODE) not in _SERVERLESS:
        return  # unknown, or a Deployment, which goes on
    for template in target.templates:
        given = template.typed.metadata.annotations.get(_DEADLINE) or annotations.get(_DEADLINE)
        try:
            deadline = units.parse_duration(given) if given else _DEFAULT_DEADLINE
        except ValueError:
            return
        for container in template.containers(Role.MAIN):
            start = start_of(template.view, container, facts)
            if start is not None and _is_beyond(start, deadline):
                yield Finding(
                    template.spec_path,
                    f"Knative gives a revision {deadline} s{'' if given else ' (the default)'} until its "
                    f"first pod is ready, but container {container.name} takes about {start.seconds} s to "
                    f"start ({start.reason}). Knative stops the pod, and the revision fails.",
                    f"Set the annotation {_DEADLINE} above {start.seconds}s, with room to pull the image.",
                )
                return


def _without_injected(pod: Json, facts: Facts) -> Json:
    """The pod template without the probes that the webhook would add and `chassis fix` writes into files."""
    view = facts.view(pod)
    for container in view.containers:
        ours = [field for field in _PROBES if looks_injected(view, container, field, facts)]
        if ours:
            kept = {key: value for key, value in container.spec.items() if key not in ours}
            pod = with_container(pod, container, kept)
    return pod


def _start_beyond(own: PodSpec, target: Target, deadline: int, facts: Facts) -> tuple[str, Start] | None:
    """A container that loads its model beyond the deadline, and that would be ready at once without the
    readinessProbe that the webhook adds."""
    with_probe = {main.name for main in own.containers if main.readiness_probe is not None}
    for template in target.templates:
        for container in template.containers(Role.MAIN):
            if container.name in with_probe or container.typed.readiness_probe is None:
                continue
            start = start_of(template.view, container, facts)
            if start is not None and _is_beyond(start, deadline):
                return container.name, start
    return None


def _is_beyond(start: Start, deadline: int) -> bool:
    """Whether the start of a container that loads a model takes longer than the deadline. Estimates from a
    size have a margin of two."""
    known = start.loading or start.annotated
    return bool(known) and start.seconds * 10 > deadline * (11 if start.declared else 20)


def _slowest_start(pod: PodSpec) -> tuple[str, int] | None:
    """The container with the longest time until it is ready, and that time in seconds.

    It includes the native sidecars, which start one after the other before the main containers.
    """
    before = sum(_startup_budget(init) for init in pod.init_containers if init.is_sidecar)
    starts = [(main.name, before + _time_until_ready(main)) for main in pod.containers]
    return max(starts, key=lambda start: start[1], default=None)


def _startup_budget(container: ContainerSpec) -> int:
    return container.startup_probe.startup_deadline if container.startup_probe is not None else 0


def _time_until_ready(container: ContainerSpec) -> int:
    """The seconds that a container's own probes allow until it is ready.

    A readiness probe has no limit, so only its initial delay counts. The initial delay of a liveness probe
    counts if there is no startup probe.
    """
    startup, ready, live = _startup_budget(container), container.readiness_probe, container.liveness_probe
    readiness = ready.initial_delay if ready is not None else 0
    liveness = live.initial_delay if live is not None and not startup else 0
    return max(startup, readiness, liveness)


RULE = rule(__name__, check, (DEPLOYMENT, ROLLOUT, *_OF_KNATIVE))
