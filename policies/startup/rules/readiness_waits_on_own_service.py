"""readiness-waits-on-own-service: pods that become ready only when their own Service answers."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.core.resources import Resource
from policies.core.services import own_service
from policies.kube.pods import Role
from policies.startup.waits import probe_waits


def check(target: Target, facts: Facts) -> Findings:
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


RULE = rule(__name__, check, requires=(PodFeature.OTHER_HOST,))
