"""init-waits-on-own-service, readiness-waits-on-own-service: pods that wait for their own Service."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.core.resources import Resource
from policies.core.services import own_service
from policies.kube.pods import Role
from policies.startup.waits import own_service_finding, probe_waits


def of_init_containers(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        for container in template.containers(Role.INIT):
            finding = own_service_finding(target, template, container, facts)
            if finding:
                yield finding


def of_probes(target: Target, facts: Facts) -> Findings:
    if not facts.listing(Resource.SERVICES):
        return
    for template in target.templates:
        for container in template.containers(Role.MAIN, Role.SIDECAR):
            flagged: set[str] = set()
            for probe, wait in probe_waits(template, container):
                service = own_service(wait.host.name, target, template, container, facts)
                if service and wait.for_service(service) and probe not in flagged:
                    flagged.add(probe)
                    yield Finding(
                        wait.path,
                        f"The {probe} probe of container {container.name} checks Service {service.name}, "
                        "whose only endpoints are this workload's own pods. No pod can become ready first.",
                        "Check the container itself: use httpGet without a host, or localhost in the "
                        "command.",
                        wait.certainty_of(service.certainty),
                    )


RULES = (
    rule(__name__, of_init_containers, requires=(PodFeature.INIT,), name="init-waits-on-own-service"),
    rule(__name__, of_probes, requires=(PodFeature.OTHER_HOST,), name="readiness-waits-on-own-service"),
)
