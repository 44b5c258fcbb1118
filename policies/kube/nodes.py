"""The nodes that a pod's own spec selects."""

from __future__ import annotations

from typing import Final

from policies.kube.objects.pods import PodSpec

HOSTNAME: Final = "kubernetes.io/hostname"


def pinned_to_one_node(pod: PodSpec) -> bool:
    if pod.node_name or pod.node_selector.get(HOSTNAME):
        return True
    required = pod.affinity.node_affinity.required
    if required is None or len(required.node_selector_terms) != 1:
        return False
    [term] = required.node_selector_terms
    return any(
        each.operator == "In" and each.key == key and len(each.values) == 1
        for key, requirements in ((HOSTNAME, term.match_expressions), ("metadata.name", term.match_fields))
        for each in requirements
    )
