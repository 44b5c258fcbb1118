"""Waits for the Service that leads to the waiting pod itself."""

from __future__ import annotations

from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.resources import Resource
from policies.core.services import own_service
from policies.core.target import PodTemplate, Target
from policies.kube.pods import Container
from policies.startup.waits import init_waits


def waits_for_own_service(
    target: Target, template: PodTemplate, container: Container, facts: Facts
) -> Finding | None:
    if not facts.listing(Resource.SERVICES):
        return None
    for wait in init_waits(template, container):
        service = own_service(wait.host.name, target, template, container, facts)
        if service and wait.for_service(service):
            return Finding(
                wait.path,
                f"Init container {container.name} waits for Service {service.name}, whose only endpoints are "
                "this workload's own pods: no pod can become ready first.",
                "Remove the wait; let the main container look for its peers once it runs.",
                wait.certainty_of(service.certainty),
            )
    return None
