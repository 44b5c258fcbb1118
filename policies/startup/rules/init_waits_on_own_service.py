"""init-waits-on-own-service: init containers that wait for their own pod's Service."""

from __future__ import annotations

from policies.core.contracts import Facts, Findings, PodFeature, Target, rule
from policies.kube.pods import Role
from policies.startup.own_service import waits_for_own_service


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        for container in template.containers(Role.INIT):
            finding = waits_for_own_service(target, template, container, facts)
            if finding:
                yield finding


RULE = rule(__name__, check, requires=(PodFeature.INIT,))
