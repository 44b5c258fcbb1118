"""init-waits-on-own-service: init containers that wait for their own pod's Service."""

from __future__ import annotations

from policies.core.contracts import Facts, Findings, PodFeature, Target, rule
from policies.kube.pods import Role
from policies.startup.waits import own_service_finding


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        for container in template.containers(Role.INIT):
            finding = own_service_finding(target, template, container, facts)
            if finding:
                yield finding


RULE = rule(__name__, check, requires=(PodFeature.INIT,))
