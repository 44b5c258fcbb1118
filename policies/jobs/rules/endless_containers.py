"""job-server-blocks-completion, job-sidecar-blocks-completion: Jobs with a container that never ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from policies.commands import SHELLS, is_python
from policies.containers.sidecars import never_ending
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.core.settings import Thresholds
from policies.kube.group_kinds import KUBEFLOW_JOBS
from policies.kube.pods import Container, Role
from policies.probes.serving import recognised

P = TypeVar("P")

_STOPS: Final = re.compile(
    r"quitquitquit|/(?:quit|shutdown|stop)\b|\bp?kill(?:all)?\b|linkerd-await|\bscuttle\b|\btimeout\b"
)
"""Arguments of containers that stop a sidecar."""
_ENDS: Final = re.compile(
    # --quitquitquit enables an endpoint that stops the proxy.
    r"exit[-_]after[-_]auth|quitquitquit|--exit-zero-on-sigterm|\bexit\b|\bp?kill\b|\btimeout\b"
)


def _needs_every_end(template: PodTemplate) -> bool:
    """Whether the workload completes only after all main containers of the pod: a Job, and a kind whose
    operator asks for the pod's phase (`UpdateJobReplicaStatuses` in pkg/core of Training Operator 1.9)."""
    owner = template.view.owner
    return owner is not None and (owner.kind == "Job" or owner.group_kind in KUBEFLOW_JOBS)


def _never_ending_beside_others(
    target: Target, program: Callable[[Container], P | None]
) -> Iterator[tuple[PodTemplate, Container, P, Certainty]]:
    """Each container of a Job with a `program` that never ends, next to containers without one. LIKELY if
    something may stop it."""
    for template in target.templates:
        if not _needs_every_end(template):
            continue
        mains = list(template.containers(Role.MAIN))
        known = {each.name: found for each in mains if (found := program(each))}
        others = [each for each in mains if each.name not in known]
        if not others:
            continue
        stopped = any(_STOPS.search(" ".join(each.typed.argv)) for each in others)
        for each in mains:
            if each.name in known:
                certainty = Certainty.LIKELY if stopped or _may_end(each) else Certainty.CERTAIN
                yield template, each, known[each.name], certainty


def _may_end(container: Container) -> bool:
    """Whether it runs a script, or has an option that ends it."""
    first = next(iter(container.typed.command), "").rpartition("/")[2]
    return first in SHELLS or is_python(first) or _ENDS.search(" ".join(container.typed.argv)) is not None


def servers(target: Target, facts: Facts) -> Findings:
    def program(container: Container) -> str | None:
        server = recognised(container, facts)
        return server.name if server else None

    for template, container, server, certainty in _never_ending_beside_others(target, program):
        yield Finding(
            template.at(container),
            f"Container {container.name} is a model server ({server}) and keeps running after its client "
            "is done. The Job completes only when all its containers have ended.",
            "Make it a native sidecar: move it to initContainers and set restartPolicy: Always.",
            certainty,
        )


def sidecars(target: Target, facts: Facts) -> Findings:
    further = facts.settings(Thresholds).endless_sidecars

    def program(container: Container) -> str | None:
        return never_ending(container.image, container.name, further)

    for template, container, name, certainty in _never_ending_beside_others(target, program):
        yield Finding(
            template.at(container),
            f"Container {container.name} ({name}) runs until something stops it, but the {_kind(target)} "
            "completes only when all its containers have ended.",
            "Make it a native sidecar: move it to initContainers and set restartPolicy: Always.",
            certainty,
        )


def _kind(target: Target) -> str:
    return target.kind.kind if target.kind in KUBEFLOW_JOBS else "Job"


RULES = (
    rule(__name__, servers, requires=(PodFeature.COMPLETES,), name="job-server-blocks-completion"),
    rule(__name__, sidecars, requires=(PodFeature.COMPLETES,), name="job-sidecar-blocks-completion"),
)
