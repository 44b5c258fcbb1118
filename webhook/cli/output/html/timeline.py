"""When the probes of a container end its start, stop its traffic, and restart it: in seconds and
sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from policies.core.facts import Facts
from policies.core.reasons import in_words
from policies.core.target import PodTemplate
from policies.kube.pods import Container, Role
from policies.probes.liveness_program import watched_start
from policies.probes.startup_budget import Start, start_of


class Timeline(Struct, frozen=True):
    """The times of a container's events in seconds; None for an event that does not happen."""

    container: str
    expected: int | None
    """From its start until it serves."""
    reason: str
    """The source of the expected time."""
    startup: int | None
    """From its start until the startupProbe, or a program in its place, kills it if it never answers."""
    liveness_only: int | None
    """The same for a livenessProbe without a startupProbe."""
    readiness: int | None
    """From its last answer until it is out of the Service."""
    liveness: int | None
    """From its last answer until it is restarted."""

    @property
    def kills_the_start(self) -> bool:
        """Whether a probe kills it before it is expected to serve."""
        until = self.startup if self.startup is not None else self.liveness_only
        return self.expected is not None and until is not None and until < self.expected

    @property
    def restarts_first(self) -> bool:
        """Whether liveness fails no later than readiness, so that overload restarts it."""
        return None not in (self.readiness, self.liveness) and (self.liveness or 0) <= (self.readiness or 0)

    @property
    def sentences(self) -> list[str]:
        """The same as text, for readers who cannot see the bars."""
        return [*self._start(), *self._later()]

    def _start(self) -> Iterator[str]:
        if self.expected is not None:
            yield f"Expected to serve {in_words(self.expected)} after it starts ({self.reason})."
        else:
            yield "The expected start is unknown."
        if self.startup is not None:
            until = in_words(self.startup)
            yield f"The kubelet kills it if it hasn't answered {until} after it starts."
        elif self.liveness_only is not None:
            yield (
                "There is no startup probe. The liveness probe kills it if it hasn't answered "
                f"{in_words(self.liveness_only)} after it starts."
            )
        else:
            yield "No probe ends a start that hangs."
        if self.kills_the_start:
            yield "That is before it is expected to serve, so it restarts in a loop."

    def _later(self) -> Iterator[str]:
        if self.readiness is not None:
            yield (
                f"Readiness gives up {in_words(self.readiness)} after it stops answering, and it gets no "
                "more traffic."
            )
        else:
            yield "There is no readiness probe, so it gets traffic whether it answers or not."
        if self.liveness is not None:
            yield (
                f"Liveness gives up {in_words(self.liveness)} after it stops answering, and the kubelet "
                "restarts it."
            )
        else:
            yield "There is no liveness probe. If it hangs, the kubelet doesn't restart it."
        if self.restarts_first:
            yield "Under overload, it is restarted before its traffic stops, or at the same time."


def timelines(pods: Iterable[tuple[PodTemplate, Facts]]) -> Iterator[Timeline]:
    """A timeline for each container with a probe; `pods`: as in `Subject.pods`."""
    for template, facts in pods:
        for container in template.containers(Role.MAIN, Role.SIDECAR):
            spec = container.typed
            if spec.startup_probe or spec.liveness_probe or spec.readiness_probe:
                yield _timeline(template, container, start_of(template.view, container, facts))


def _timeline(template: PodTemplate, container: Container, start: Start | None) -> Timeline:
    startup, liveness = container.typed.startup_probe, container.typed.liveness_probe
    readiness, watched = container.typed.readiness_probe, watched_start(container.spec.get("livenessProbe"))
    return Timeline(
        container=container.name,
        expected=start.seconds if start else None,
        reason=start.reason if start else "",
        startup=startup.startup_deadline if startup else watched or None,
        liveness_only=liveness.startup_deadline if liveness and not startup and not watched else None,
        readiness=readiness.give_up if readiness and not template.completes else None,
        liveness=liveness.give_up if liveness else None,
    )
