"""grace-shorter-than-prestop: hooks that outlast the grace period."""

from __future__ import annotations

import math

from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.disruption.drains import pre_stop_sleep
from policies.kube.pods import Role


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        grace = template.typed.spec.grace
        for container in template.containers(Role.MAIN, Role.SIDECAR):
            sleep = pre_stop_sleep(template, container)
            if sleep > 0 and sleep >= grace:
                length = "forever" if math.isinf(sleep) else f"{sleep:g} s"
                yield Finding(
                    template.at(container, "lifecycle.preStop"),
                    f"The preStop hook of container {container.name} sleeps {length}, but "
                    f"terminationGracePeriodSeconds is {grace}. The kubelet kills the container before it "
                    "can stop by itself.",
                    "Raise terminationGracePeriodSeconds above the sleep plus the time to finish requests, "
                    "or shorten the sleep.",
                )


RULE = rule(__name__, check, requires=(PodFeature.LIFECYCLE,))
