"""init-waits-on-own-service: init containers that wait for their own pod's Service."""

from __future__ import annotations

from collections.abc import Iterator

from policies.core.contracts import rule
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.pod_features import PodFeature
from policies.core.target import Target
from policies.kube.pods import Role
from policies.startup.own_service import waits_for_own_service


def check(target: Target, facts: Facts) -> Iterator[Finding]:
    for template in target.templates:
        for container in template.containers(Role.INIT):
            finding = waits_for_own_service(target, template, container, facts)
            if finding:
                yield finding


RULE = rule(__name__, check, requires=(PodFeature.INIT,))
