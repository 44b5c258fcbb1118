"""init-waits-on-own-pod: init containers that wait for a server that starts only after them."""

from __future__ import annotations

from typing import Final

from policies.commands import SHELLS, Reach
from policies.containers.commands import container_command
from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.kube.pods import Role

_WAITS: Final = SHELLS | {"sleep", "echo", "printf", "date", "test", "[", "[[", "true", "set"}
"""Programs other than the client in a script that waits."""


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        if template.typed.spec.host_network:
            continue  # loopback is the node's
        for container in template.containers(Role.INIT, Role.SIDECAR):
            if container.role is Role.SIDECAR:
                break  # it may be the server
            summary = container_command(template, container)
            loops = [loop for loop in summary.loops if loop.hosts and not loop.bounded]
            if not loops or any(host.reach is not Reach.LOCAL for loop in loops for host in loop.hosts):
                continue
            if any(command.name not in _WAITS and not command.hosts for command in summary.commands):
                continue  # it may start the server itself
            yield Finding(
                template.command_path(container),
                f"Init container {container.name} waits for {loops[0].hosts[0].name or 'a server'} in its "
                "own pod, but the pod's other containers start only after it has ended.",
                "Wait in the main container, or make the server a native sidecar: an init container before "
                "this one, with restartPolicy: Always.",
            )


RULE = rule(__name__, check, requires=(PodFeature.INIT,))
