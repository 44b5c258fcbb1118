"""Containers that nothing restarts when they hang."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.facts import Facts
from policies.core.target import Target
from policies.kube.pods import Container
from policies.probes.serving import serving_containers


def without_liveness(target: Target, facts: Facts) -> Iterator[tuple[str, Container]]:
    """The serving containers that have no livenessProbe after mutation, each with the field's path.

    KubeRay fills the probes of Ray's own container when it makes the pod, and a serving runtime has its own.
    """
    for template in target.templates:
        if template.is_ray or template.container_path:
            continue
        for container in serving_containers(template.pod, facts):
            if not container.spec.get("livenessProbe"):
                yield template.at(container, "livenessProbe"), container
