"""progress-deadline-too-short: a deadline below the start that the pods' own probes allow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.target import Target
from policies.kube.group_kinds import DEPLOYMENT
from policies.kube.json import Json, integer, mapping
from policies.kube.pods import Role, containers
from policies.kube.probe_timing import initial_delay, kill_budget
from policies.rollouts.rollouts import replicas_of

DEFAULT_PROGRESS_DEADLINE: Final = 600
"""Seconds; what the API server fills in."""
NO_PROGRESS_DEADLINE: Final = 2**31 - 1
"""The value that switches the deadline off."""


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    given = target.spec.get("progressDeadlineSeconds")
    deadline = integer(target.spec, "progressDeadlineSeconds", default=DEFAULT_PROGRESS_DEADLINE)
    if (
        deadline == NO_PROGRESS_DEADLINE
        or target.spec.get("paused") is True
        or replicas_of(target.obj) < 1
        or not isinstance(given, int | None)
    ):
        return
    # The user's own template: what the webhook injects is generous on purpose and must not count.
    slowest = _slowest_start(mapping(target.obj, "spec", "template"))
    if slowest is None or slowest[1] * 10 <= deadline * 11:  # a tenth above is rounding
        return
    name, seconds = slowest
    yield Finding(
        "spec.progressDeadlineSeconds",
        f"The rollout counts as failed after {deadline} s{'' if given else ' (the default)'}, but the probes "
        f"of container {name} allow {seconds} s until it is ready.",
        f"Set spec.progressDeadlineSeconds above {seconds}, with room to pull the image.",
    )


def _slowest_start(pod: Json) -> tuple[str, int] | None:
    """The container that may take longest until ready, and how long its pod may then take, in seconds.

    Native sidecars start one after the other, before the main containers.
    """
    before = sum(_startup_budget(sidecar.spec) for sidecar in containers(pod, Role.SIDECAR))
    starts = [(main.name, before + _time_until_ready(main.spec)) for main in containers(pod, Role.MAIN)]
    return max(starts, key=lambda start: start[1], default=None)


def _startup_budget(container: Json) -> int:
    probe = mapping(container, "startupProbe")
    return kill_budget(probe) if probe else 0


def _time_until_ready(container: Json) -> int:
    """Seconds from its start that a container's own probes allow until it is ready.

    A readiness probe never gives up, so its failureThreshold bounds nothing; its initial delay is
    time in which the pod can't be ready. A liveness probe that stands alone tells by its delay how
    long the author lets the start take.
    """
    startup = _startup_budget(container)
    readiness = initial_delay(container.get("readinessProbe"))
    liveness = 0 if startup else initial_delay(container.get("livenessProbe"))
    return max(startup, readiness, liveness)


RULE = rule(__name__, check, (DEPLOYMENT,))
