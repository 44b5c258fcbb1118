"""Containers that stay down when they hang, since no probe restarts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from policies.core.facts import Facts
from policies.core.target import PodTemplate, Target
from policies.kube.names import listed
from policies.kube.pods import Container
from policies.probes.endpoints import server_port, unsure
from policies.probes.own_servers import is_bare, is_own_server
from policies.probes.recognition import GroupRole
from policies.probes.serving import recognised, serving_containers


def without_liveness(target: Target, facts: Facts) -> Iterator[list[tuple[PodTemplate, Container]]]:
    """The serving containers of each pod template that have no livenessProbe after mutation, and whose probes
    are their owner's business.

    KubeRay fills the probes of Ray's own container when it makes the pod, and a serving runtime has its own;
    of a group of nodes only the first serves.
    """
    for template in target.templates:
        if template.is_ray or template.container_path or is_bare(template):
            continue
        found = []
        for container in serving_containers(template.pod, facts):
            server = recognised(container, facts)
            if container.spec.get("livenessProbe") or (
                server is not None and server.role is not GroupRole.SERVES
            ):
                continue
            if is_own_server(template, container, facts):
                found.append((template, container))
        yield found


def called(containers: Sequence[Container]) -> str:
    """What a sentence calls containers of one pod: `Container api`, `Containers api and web`."""
    noun = "Container" if len(containers) == 1 else "Containers"
    return f"{noun} {listed([each.name for each in containers])}"


def what_to_write(container: Container, facts: Facts) -> str | None:
    """The liveness endpoint of the known server in a container, if it can't be injected; None for an unknown
    one."""
    server = recognised(container, facts)
    doubt = unsure(container, server, server_port(container, server)) if server else None
    if server is None or doubt is None:
        return None
    why, advice = doubt
    return f"It runs {server.name}, and {why}: {advice[:1].lower()}{advice[1:]}."
