"""priority-class-missing: pods with a PriorityClass that does not exist."""

from __future__ import annotations

from typing import Final

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.facts import BY_NAME
from policies.core.resources import Resource
from policies.core.suggestions import closest
from policies.kube.group_kinds import POD
from policies.kube.json import text
from policies.kube.metadata import controller

_BUILT_IN: Final = ("system-node-critical", "system-cluster-critical")
"""Every API server makes these two, so a listing without them is a part of the cluster."""
_ALIKE: Final = 0.8
"""How alike two names are of which one is a mistake for the other."""


def check(target: Target, facts: Facts) -> Findings:
    if target.kind == POD or controller(target.obj) is not None:
        return  # the API server refuses a Pod at once
    classes = facts.cluster.listing(Resource.PRIORITY_CLASSES)
    if not classes:
        return
    by_name = classes.by(BY_NAME)
    for template in target.templates:
        name = text(template.spec, "priorityClassName")
        if not name or name in _BUILT_IN or by_name.one(name) is not None:
            continue
        near = closest(name, (text(each, "metadata", "name") for each in classes), _ALIKE)
        if near or all(by_name.one(each) is not None for each in _BUILT_IN):
            yield Finding(
                f"{template.spec_path}.priorityClassName",
                f"PriorityClass {name} does not exist{f'; there is {near}' if near else ''}. The API server "
                f"refuses every pod of this {target.kind.kind}.",
                "Correct the name, or create the PriorityClass first.",
            )


RULE = rule(__name__, check)
