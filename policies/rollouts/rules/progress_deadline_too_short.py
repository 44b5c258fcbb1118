"""progress-deadline-too-short: a deadline below the start that the pods' own probes allow."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import DEPLOYMENT, ROLLOUT, kind_of
from policies.kube.json import Json, integer, mapping
from policies.kube.pods import Role, containers, with_container
from policies.kube.probe_defaults import initial_delay, startup_deadline
from policies.probes.injected import looks_injected
from policies.probes.startup_budget import Start, start_of
from policies.rollouts.rollouts import replicas_of

_READINESS: Final = "readinessProbe"
_PROBES: Final = (_READINESS, "livenessProbe", "startupProbe")
_DEFAULT_DEADLINE: Final = 600
"""Seconds; the default of the API server and of Argo Rollouts (utils/defaults of v1.8.3)."""
_NO_DEADLINE: Final = 2**31 - 1
"""The value that switches the deadline off."""


def check(target: Target, facts: Facts) -> Findings:
    given = target.spec.get("progressDeadlineSeconds")
    deadline = integer(target.spec, "progressDeadlineSeconds", default=_DEFAULT_DEADLINE)
    if (
        deadline == _NO_DEADLINE
        or target.spec.get("paused") is True
        or replicas_of(target.obj) < 1
        or not isinstance(given, int | None)
    ):
        return
    after = f"after {deadline} s{'' if given else ' (the default)'}, but"
    aborts = kind_of(target.obj) == ROLLOUT and target.spec.get("progressDeadlineAbort") is True
    failed = f"{'Argo Rollouts aborts the rollout' if aborts else 'The rollout counts as failed'} {after}"
    # The user's own template: the probes that the webhook injects are generous on purpose and do not count.
    own = _without_injected(mapping(target.obj, "spec", "template"), facts)
    slowest = _slowest_start(own)
    if slowest is not None and slowest[1] * 10 > deadline * 11:  # a tenth above is rounding
        name, seconds = slowest
        why = f"{failed} the probes of container {name} allow {seconds} s until it is ready."
    elif added := _start_beyond(own, target, deadline, facts):
        name, start = added
        seconds = start.seconds
        why = (
            f"{failed} container {name} takes about {seconds} s to start ({start.reason}), and the "
            "readinessProbe that the webhook adds to its pods waits for that."
        )
    else:
        return
    yield Finding(
        "spec.progressDeadlineSeconds",
        why,
        f"Set spec.progressDeadlineSeconds above {seconds}, with room to pull the image.",
    )


def _without_injected(pod: Json, facts: Facts) -> Json:
    """The pod template without the probes that the webhook would add and `chassis fix` writes into files."""
    for container in facts.view(pod).containers:
        ours = [field for field in _PROBES if looks_injected(pod, container, field, facts)]
        if ours:
            kept = {key: value for key, value in container.spec.items() if key not in ours}
            pod = with_container(pod, container, kept)
    return pod


def _start_beyond(own: Json, target: Target, deadline: int, facts: Facts) -> tuple[str, Start] | None:
    """A container that loads its model beyond the deadline, and that would be ready at once without the
    readinessProbe that the webhook adds. Estimates from a size have a margin of two."""
    with_probe = {main.name for main in containers(own, Role.MAIN) if main.spec.get(_READINESS)}
    for template in target.templates:
        for container in template.containers(Role.MAIN):
            if container.name in with_probe or not container.spec.get(_READINESS):
                continue
            start = start_of(template.pod, container, facts)
            if start is None or not (start.loading or start.annotated):
                continue
            if start.seconds * 10 > deadline * (11 if start.declared else 20):
                return container.name, start
    return None


def _slowest_start(pod: Json) -> tuple[str, int] | None:
    """The container with the longest time until it is ready, and that time in seconds.

    It includes the native sidecars, which start one after the other before the main containers.
    """
    before = sum(_startup_budget(sidecar.spec) for sidecar in containers(pod, Role.SIDECAR))
    starts = [(main.name, before + _time_until_ready(main.spec)) for main in containers(pod, Role.MAIN)]
    return max(starts, key=lambda start: start[1], default=None)


def _startup_budget(container: Json) -> int:
    probe = mapping(container, "startupProbe")
    return startup_deadline(probe) if probe else 0


def _time_until_ready(container: Json) -> int:
    """The seconds that a container's own probes allow until it is ready.

    A readiness probe has no limit, so only its initial delay counts. The initial delay of a liveness probe
    counts if there is no startup probe.
    """
    startup = _startup_budget(container)
    readiness = initial_delay(container.get(_READINESS))
    liveness = 0 if startup else initial_delay(container.get("livenessProbe"))
    return max(startup, readiness, liveness)


RULE = rule(__name__, check, (DEPLOYMENT, ROLLOUT))
