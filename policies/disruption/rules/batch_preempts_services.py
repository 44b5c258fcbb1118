"""batch-preempts-services: batch work and defaults whose priority lets them evict running services."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.lifecycles import known_lifecycles
from policies.jobs.jobs import is_hook
from policies.kube.group_kinds import PRIORITY_CLASS
from policies.kube.objects.limits import PriorityClass

_SYSTEM: Final = ("system-cluster-critical", "system-node-critical")
_NAMESPACES: Final = ("kube-system",)


def check(target: Target, facts: Facts) -> Findings:
    if target.kind == PRIORITY_CLASS:
        made = target.read(PriorityClass)
        if made.global_default and made.value > 0 and made.preemption_policy != "Never":
            yield Finding(
                "preemptionPolicy",
                f"Every new pod without a class gets priority {made.value} and can evict running pods. The "
                "pods that were created before this class have priority 0, so they're evicted first.",
                "Set preemptionPolicy of the default class to Never, or set its value to 0.",
            )
        return
    if target.has_controller or facts.namespace in _NAMESPACES or is_hook(target.obj):
        return
    for template in target.templates:
        name = template.typed.spec.priority_class_name
        if template.completes and name in _SYSTEM:
            yield Finding(
                f"{template.spec_path}.priorityClassName",
                f"The class {name} is meant for pods that the cluster itself needs. When the nodes are "
                "full, these batch pods evict services, including monitoring.",
                "Use your own PriorityClass with a low value, and with preemptionPolicy Never for batch "
                "work.",
            )
            return


RULE = rule(__name__, check, (PRIORITY_CLASS, *known_lifecycles()))
