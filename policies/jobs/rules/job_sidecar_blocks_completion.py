"""job-sidecar-blocks-completion: Jobs that never complete because of a sidecar."""

from __future__ import annotations

from policies.containers.sidecars import never_ending
from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.core.settings import Thresholds
from policies.jobs.endless_containers import never_ending_beside_others
from policies.kube.group_kinds import KUBEFLOW_JOBS
from policies.kube.pods import Container


def check(target: Target, facts: Facts) -> Findings:
    further = facts.settings(Thresholds).endless_sidecars

    def program(container: Container) -> str | None:
        return never_ending(container.image, container.name, further)

    for template, container, name, certainty in never_ending_beside_others(target, program):
        yield Finding(
            template.at(container),
            f"Container {container.name} ({name}) runs until something stops it, but the {_kind(target)} "
            "completes only when all its containers have ended.",
            "Make it a native sidecar: move it to initContainers and set restartPolicy: Always.",
            certainty,
        )


def _kind(target: Target) -> str:
    return target.kind.kind if target.kind in KUBEFLOW_JOBS else "Job"


RULE = rule(__name__, check, requires=(PodFeature.COMPLETES,))
