"""init-waits-on-own-pod: init containers that wait for a server that starts only after them."""

from __future__ import annotations

import re
from typing import Final

from policies.commands import SHELLS, CommandSummary, Reach
from policies.containers.commands import container_command
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.kube.pods import Role
from policies.startup.waits import may_end_otherwise

_WAITS: Final = SHELLS | {"sleep", "echo", "printf", "date", "test", "[", "[[", "true", "set"}
"""Programs other than the client in a script that waits."""
_NUMBER: Final = re.compile(r"[0-9]+")


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
            if not may_end_otherwise(summary).isdisjoint(loops[0].hosts):
                continue
            if any(command.name not in _WAITS and not command.hosts for command in summary.commands):
                continue  # it may start the server itself
            late = _names_port_of_main(template, summary)
            unless = "" if late else ", unless something adds the server to the pod as a native sidecar"
            yield Finding(
                template.command_path(container),
                f"Init container {container.name} waits for {loops[0].hosts[0].name or 'a server'} in its "
                f"own pod, but the pod's other containers start only after it has ended{unless}.",
                "Wait in the main container, or make the server a native sidecar: an init container before "
                "this one, with restartPolicy: Always.",
                Certainty.CERTAIN if late else Certainty.LIKELY,
            )


def _names_port_of_main(template: PodTemplate, summary: CommandSummary) -> bool:
    """Whether a command that asks a host names a port that a main container declares. Webhooks such as
    Istio's and the Cloud SQL operator's add others, which the manifest does not show."""
    words = [word for command in summary.commands if command.hosts for word in command.argv]
    named = {number for word in words for number in _NUMBER.findall(word)}
    return any(str(port) in named for each in template.containers(Role.MAIN) for port in each.tcp_ports)


RULE = rule(__name__, check, requires=(PodFeature.INIT,))
