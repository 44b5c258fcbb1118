"""ordered-start-deadlock: pods wait for members of their group that are made only after them."""

from __future__ import annotations

from policies.core.contracts import Facts, Findings, Target, rule
from policies.kube.pods import Role
from policies.startup.peers import ORDERED, init_peer_finding, peer_finding
from policies.startup.waits import probe_waits


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        for container in template.containers(Role.INIT):
            finding = init_peer_finding(target, template, container, facts)
            if finding:
                yield finding
        for container in template.containers(Role.MAIN, Role.SIDECAR):
            flagged: set[str] = set()
            for probe, wait in probe_waits(template, container):
                finding = peer_finding(target, template, wait, container, f"The {probe} probe of", facts)
                if finding and probe not in flagged:
                    flagged.add(probe)
                    yield finding


RULE = rule(__name__, check, ORDERED)
