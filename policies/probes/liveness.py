"""Containers that nothing restarts when they hang."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.facts import Facts
from policies.core.target import Target
from policies.kube.pods import Container
from policies.probes.endpoints import unsure
from policies.probes.servers import Part
from policies.probes.serving import StandardProbes, recognised, serving_containers


def without_liveness(target: Target, facts: Facts) -> Iterator[tuple[str, Container]]:
    """The serving containers that have no livenessProbe after mutation, each with the field's path.

    KubeRay fills the probes of Ray's own container when it makes the pod, and a serving runtime has its own;
    of a group of nodes only the first serves.
    """
    settings = facts.settings(StandardProbes)
    for template in target.templates:
        if template.is_ray or template.container_path:
            continue
        for container in serving_containers(template.pod, facts):
            server = recognised(container, settings)
            if not container.spec.get("livenessProbe") and (server is None or server.part is Part.SERVES):
                yield template.at(container, "livenessProbe"), container


def what_to_write(container: Container, facts: Facts) -> str | None:
    """What the known server in a container needs, where nothing can be injected; None for an unknown one."""
    server = recognised(container, facts.settings(StandardProbes))
    doubt = unsure(container, server) if server else None
    if server is None or doubt is None:
        return None
    why, advice = doubt
    return f"It runs {server.name}, and {why}: {advice[:1].lower()}{advice[1:]}."
