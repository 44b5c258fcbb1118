"""The nodes that a pod's own spec selects."""

from __future__ import annotations

from typing import Final

from policies.kube.objects.pods import PodSpec

HOSTNAME: Final = "kubernetes.io/hostname"


def only_node(pod: PodSpec) -> str:
    """The only node that a pod may run on, by its name or its host name; empty if there are several."""
    if found := pod.node_name or pod.node_selector.get(HOSTNAME, ""):
        return found
    required = pod.affinity.node_affinity.required
    if required is None or len(required.node_selector_terms) != 1:
        return ""
    [term] = required.node_selector_terms
    names = (
        each.values[0]
        for key, requirements in ((HOSTNAME, term.match_expressions), ("metadata.name", term.match_fields))
        for each in requirements
        if each.operator == "In" and each.key == key and len(each.values) == 1
    )
    return next(names, "")


def pinned_to_one_node(pod: PodSpec) -> bool:
    return bool(only_node(pod))
