"""parallelism-exceeds-gpus: servers with options for more GPUs than their container has."""

from __future__ import annotations

from policies.accelerators.parallelism import devices, on_this_node, runs_only, runs_ray
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.kube.pods import Container, Role
from policies.probes.recognition import Server
from policies.probes.serving import recognised


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        if template.is_ray or template.rewritten:
            continue  # the operator may add the options for several nodes
        for container in template.containers(Role.MAIN):
            available = devices(container)
            server = recognised(container, facts) if available else None
            needed = 0 if server is None else on_this_node(server)
            if server is None or needed <= available or not runs_only(container, server):
                continue
            if not runs_ray(template):
                yield _finding(template, container, server, needed, available)


def _finding(
    template: PodTemplate, container: Container, server: Server, needed: int, available: int
) -> Finding:
    field = "args" if container.typed.args else "command"
    return Finding(
        template.at(container, field),
        f"Container {container.name} runs {server.name} with options for {needed} GPUs but gets "
        f"{available}. The server fails at every start.",
        f"Give the container {needed} GPUs, or lower the parallelism to {available}. If the server spans "
        "nodes, add the options for that.",
        Certainty.UNDECIDED if server.has_env_from else Certainty.CERTAIN,
    )


RULE = rule(__name__, check, requires=(PodFeature.EXTENDED,))
