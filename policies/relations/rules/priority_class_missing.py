"""priority-class-missing: pods with a PriorityClass that does not exist."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import POD
from policies.kube.names import SIMILAR, closest
from policies.kube.objects.limits import PriorityClass

_BUILT_IN: Final = ("system-node-critical", "system-cluster-critical")
"""Every API server creates these two, so a listing without them is incomplete."""


def check(target: Target, facts: Facts) -> Findings:
    if target.kind == POD:
        return  # the API server refuses a Pod at once
    classes = facts.cluster_objects(PriorityClass)
    if not classes:
        return
    for template in target.templates:
        name = template.typed.spec.priority_class_name
        if not name or name in _BUILT_IN or classes.named(name) is not None:
            continue
        similar = closest(name, (each.name for each in classes), SIMILAR)
        if similar or all(classes.named(each) is not None for each in _BUILT_IN):
            there_is = f"; there is {similar}" if similar else ""
            yield Finding(
                f"{template.spec_path}.priorityClassName",
                f"PriorityClass {name} doesn't exist{there_is}. The API server refuses every pod of this "
                f"{target.kind.kind}.",
                "Correct the name, or create the PriorityClass first.",
            )


RULE = rule(__name__, check, unowned=True)
