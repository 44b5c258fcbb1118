"""progress-deadline-too-short: a deadline below the start that the pods' own probes allow."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import DEPLOYMENT, ROLLOUT, kind_of
from policies.kube.json import Json, integer, mapping
from policies.kube.pods import Role, containers
from policies.kube.probe_timing import initial_delay, startup_deadline
from policies.probes.start import Start, start_of
from policies.rollouts.rollouts import replicas_of

READINESS: Final = "readinessProbe"
DEFAULT_PROGRESS_DEADLINE: Final = 600
"""Seconds; what the API server fills in, and what Argo Rollouts assumes (utils/defaults of v1.8.3)."""
NO_PROGRESS_DEADLINE: Final = 2**31 - 1
"""The value that switches the deadline off."""


def check(target: Target, facts: Facts) -> Findings:
    given = target.spec.get("progressDeadlineSeconds")
    deadline = integer(target.spec, "progressDeadlineSeconds", default=DEFAULT_PROGRESS_DEADLINE)
    if (
        deadline == NO_PROGRESS_DEADLINE
        or target.spec.get("paused") is True
        or replicas_of(target.obj) < 1
        or not isinstance(given, int | None)
    ):
        return
    after = f"after {deadline} s{'' if given else ' (the default)'}, but"
    aborts = kind_of(target.obj) == ROLLOUT and target.spec.get("progressDeadlineAbort") is True
    failed = f"{'Argo Rollouts aborts the rollout' if aborts else 'The rollout counts as failed'} {after}"
    # The user's own template: what the webhook injects is generous on purpose and must not count.
    own = mapping(target.obj, "spec", "template")
    slowest = _slowest_start(own)
    if slowest is not None and slowest[1] * 10 > deadline * 11:  # a tenth above is rounding
        name, seconds = slowest
        why = f"{failed} the probes of container {name} allow {seconds} s until it is ready."
    elif added := _awaited(own, target, deadline, facts):
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


def _awaited(own: Json, target: Target, deadline: int, facts: Facts) -> tuple[str, Start] | None:
    """A container that would be ready at once, but for a readinessProbe that the webhook adds, and that loads
    its model beyond the deadline. An estimate from a size is judged with a margin of two."""
    written = {main.name for main in containers(own, Role.MAIN) if main.spec.get(READINESS)}
    for template in target.templates:
        for container in template.containers(Role.MAIN):
            if container.name in written or not container.spec.get(READINESS):
                continue
            start = start_of(template.pod, container, facts)
            if start is None or not (start.loading or start.annotated):
                continue
            if start.seconds * 10 > deadline * (11 if start.declared else 20):
                return container.name, start
    return None


def _slowest_start(pod: Json) -> tuple[str, int] | None:
    """The container that may take longest until ready, and how long its pod may then take, in seconds.

    Native sidecars start one after the other, before the main containers.
    """
    before = sum(_startup_budget(sidecar.spec) for sidecar in containers(pod, Role.SIDECAR))
    starts = [(main.name, before + _time_until_ready(main.spec)) for main in containers(pod, Role.MAIN)]
    return max(starts, key=lambda start: start[1], default=None)


def _startup_budget(container: Json) -> int:
    probe = mapping(container, "startupProbe")
    return startup_deadline(probe) if probe else 0


def _time_until_ready(container: Json) -> int:
    """Seconds from its start that a container's own probes allow until it is ready.

    A readiness probe never gives up, so its failureThreshold is no bound; during its initial delay the pod
    can't be ready. The delay of a liveness probe without a startup probe is the time that the author allows
    for the start.
    """
    startup = _startup_budget(container)
    readiness = initial_delay(container.get(READINESS))
    liveness = 0 if startup else initial_delay(container.get("livenessProbe"))
    return max(startup, readiness, liveness)


RULE = rule(__name__, check, (DEPLOYMENT, ROLLOUT))
