"""grace-shorter-than-drain: servers that are killed before they have finished their requests."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.disruption.drains import drain_of, pre_stop_sleep
from policies.kube.pods import Role


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        if template.completes:
            continue
        grace = template.typed.spec.grace
        for container in template.containers(Role.MAIN):
            drain = drain_of(container, facts)
            if drain is None or not drain.option:
                continue
            sleep = pre_stop_sleep(template, container)
            if sleep < grace < sleep + drain.seconds:
                first = f", after {sleep:g} s of preStop" if sleep else ""
                yield Finding(
                    template.at(container),
                    f"Container {container.name} may take {drain.seconds} s to finish requests "
                    f"({drain.option}){first}, and the pod has {grace} s to end: requests that take longer "
                    f"than {grace - sleep:g} s are killed.",
                    f"Set terminationGracePeriodSeconds above {sleep + drain.seconds:g}, or {drain.option} "
                    f"below {grace - sleep:g}.",
                )


RULE = rule(__name__, check)
