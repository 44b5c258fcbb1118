"""parallelism-exceeds-gpus: servers with options for more GPUs than their container has."""

from __future__ import annotations

import re
from typing import Final

from policies.accelerators.parallelism import on_this_node
from policies.accelerators.requests import whole_number
from policies.commands import SHELLS
from policies.containers.programs import launch_of, started
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.kube.pods import Container, Role
from policies.probes.recognition import Server
from policies.probes.serving import recognised

_GPU: Final = re.compile(r"nvidia\.com/(?:gpu|gpu\.shared|mig-\d+g\.\d+gb)")
"""Resources that count CUDA devices; other vendors have other units."""
_VISIBLE: Final = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_HARMLESS: Final = frozenset(
    {"echo", "cd", "export", "set", "mkdir", "ulimit", "sleep", "pip", "hf", "huggingface-cli"}
)
"""Programs that start nothing on other nodes."""


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


def runs_ray(template: PodTemplate) -> bool:
    """Whether the pod may join a Ray cluster, whose other nodes have GPUs, too."""
    return any(
        program[0] == "ray" or any("ray_cluster" in word for word in program)
        for container in template.containers()
        for program in started(container).all
    ) or any(
        name.startswith("RAY_")
        for container in template.containers()
        for name in launch_of(container).variables
    )


def runs_only(container: Container, server: Server) -> bool:
    """Whether the container runs only the server: another entrypoint may start a cluster."""
    if not launch_of(container).command and not server.own_image:
        return False
    every = started(container)
    return every.complete and all(
        program == server.argv or program[0] in _HARMLESS or (len(program) == 1 and program[0] in SHELLS)
        for program in every.all
    )


def devices(container: Container) -> int:
    """The number of CUDA devices of a container; 0 if unknown."""
    resources = container.typed.resources
    if resources.claims or container.typed.security_context.privileged:
        return 0
    if any(name in launch_of(container).variables for name in _VISIBLE):
        return 0
    requested = {**resources.requests, **resources.limits}
    if any(name.startswith("nvidia.com/") and not _GPU.fullmatch(name) for name in requested):
        return 0
    return sum(whole_number(value) for name, value in requested.items() if _GPU.fullmatch(name))


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
