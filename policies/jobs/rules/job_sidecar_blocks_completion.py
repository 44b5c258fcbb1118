"""job-sidecar-blocks-completion: Jobs that never end because a sidecar doesn't."""

from __future__ import annotations

from collections.abc import Iterator

from policies.containers.sidecars import never_ending
from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Certainty, Finding
from policies.core.target import PodTemplate, Target
from policies.core.thresholds import Thresholds
from policies.jobs.sidecars import is_of_a_job, may_end, stops_another
from policies.kube.pods import Container, Role


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    for template in target.templates:
        if not is_of_a_job(template):
            continue
        mains = list(template.containers(Role.MAIN))
        known = {container.name: program for container in mains if (program := _program(container, facts))}
        others = [container for container in mains if container.name not in known]
        if not others:
            continue
        stopped = any(stops_another(container) for container in others)
        for container in mains:
            if container.name in known:
                yield _finding(template, container, known[container.name], stopped or may_end(container))


def _program(container: Container, facts: Facts) -> str | None:
    """The never-ending program in a container, in words; None where it is none that is known."""
    return never_ending(container.image, container.name, facts.settings(Thresholds).endless_sidecars)


def _finding(template: PodTemplate, container: Container, program: str, stopped: bool) -> Finding:
    return Finding(
        template.at(container),
        f"Container {container.name} ({program}) runs until something stops it, and the Job is not complete "
        "before all its containers are.",
        "Make it a native sidecar: move it to initContainers with restartPolicy: Always.",
        Certainty.LIKELY if stopped else Certainty.SURE,
    )


RULE = rule(__name__, check)
