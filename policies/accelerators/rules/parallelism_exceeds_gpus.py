"""parallelism-exceeds-gpus: servers and trainings with options for more GPUs than their container has."""

from __future__ import annotations

from typing import Final

from policies.accelerators.parallelism import (
    names_devices,
    on_this_node,
    runs_only,
    runs_ray,
    visible_devices,
)
from policies.accelerators.rank_launchers import rank_launcher, ranks_of
from policies.containers.commands import container_command
from policies.containers.programs import has_option
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.core.runs import run_of
from policies.kube.pods import Container, Role
from policies.probes.recognition import Server
from policies.probes.serving import recognised

_BY_VARIABLE: Final = " by CUDA_VISIBLE_DEVICES"
_REMOVE: Final = "Remove CUDA_VISIBLE_DEVICES: a container gets no other GPUs than it requests."


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        if template.is_ray or template.rewritten:
            continue  # the operator may add the options for several nodes
        for container in template.containers(Role.MAIN):
            available = visible_devices(container)
            if not available:
                continue
            if template.completes:
                yield from _training(target, template, container, available)
            server = recognised(container, facts)
            needed = 0 if server is None else on_this_node(server)
            if server is None or needed <= available or not runs_only(container, server):
                continue
            if not runs_ray(template):
                yield _finding(template, container, server, needed, available)


def _finding(
    template: PodTemplate, container: Container, server: Server, needed: int, available: int
) -> Finding:
    field = "args" if container.typed.args else "command"
    gets = "is shown" if (hidden := names_devices(container)) else "gets"
    return Finding(
        template.at(container, field),
        f"Container {container.name} runs {server.name} with options for {needed} GPUs but {gets} "
        f"{available}{_BY_VARIABLE if hidden else ''}. The server fails at every start.",
        _REMOVE
        if hidden
        else f"Give the container {needed} GPUs, or lower the parallelism to {available}. If the server "
        "spans nodes, add the options for that.",
        Certainty.UNDECIDED if server.has_env_from or hidden else Certainty.CERTAIN,
    )


def _training(target: Target, template: PodTemplate, container: Container, available: int) -> Findings:
    """A launcher that starts more ranks than there are GPUs, each of which takes the GPU of its number."""
    run = run_of(target.obj)
    per_pod = "" if run is None else run.per_pod
    for command in container_command(template, container).commands:
        words = command.argv
        launcher = rank_launcher(command.name, words)
        if launcher is None or launcher.least_alone:
            continue
        if has_option(words, *launcher.remote, "--cpu"):
            continue
        ranks = ranks_of(launcher, words, container, per_pod)
        gets = "is shown" if (hidden := names_devices(container)) else "gets"
        if ranks > available and not any("gloo" in word for word in words):
            yield Finding(
                template.command_path(container),
                f"In container {container.name}, {launcher.run} starts {ranks} processes, but the container "
                f"{gets} {available} GPUs{_BY_VARIABLE if hidden else ''}. Each process takes the GPU of its "
                "number, so the training fails at every start, unless it computes on processors.",
                _REMOVE if hidden else f"Give the container {ranks} GPUs, or start {available} processes.",
                Certainty.UNDECIDED,
            )


RULE = rule(__name__, check, requires=(PodFeature.EXTENDED,))
