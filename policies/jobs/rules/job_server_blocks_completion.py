"""job-server-blocks-completion: Jobs that never complete because of a model server next to the client."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.jobs.endless_containers import never_ending_beside_others
from policies.kube.pods import Container
from policies.probes.serving import recognised


def check(target: Target, facts: Facts) -> Findings:
    def program(container: Container) -> str | None:
        server = recognised(container, facts)
        return server.name if server else None

    for template, container, server, certainty in never_ending_beside_others(target, program):
        yield Finding(
            template.at(container),
            f"Container {container.name} is a model server ({server}) and keeps running after its client "
            "is done. The Job completes only when all its containers have ended.",
            "Make it a native sidecar: move it to initContainers and set restartPolicy: Always.",
            certainty,
        )


RULE = rule(__name__, check, requires=(PodFeature.COMPLETES,))
