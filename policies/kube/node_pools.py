"""Whether Karpenter can create a node for a pod, by its NodePools.

Law: a NodePool can unless its labels, requirements or taints exclude the pod. Instance types are unknown
here, so labels that a cloud provider may set count as possible.

Semantics: `pkg/scheduling/requirements.go` and `pkg/apis/v1/labels.go` of Karpenter 1.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from policies.kube.objects.metadata import Requirement
from policies.kube.objects.nodes import NodePool
from policies.kube.objects.placement import NodeSelectorTerm
from policies.kube.objects.pods import PodSpec
from policies.kube.scheduling import matches, required_terms, tolerates

POOL: Final = "karpenter.sh/nodepool"
"""The label of a node with the name of its NodePool."""
MAX_POOLS: Final = 200
"""Of more NodePools none is compared with a pod."""
_PROVIDERS: Final = (
    *("kubernetes.io", "k8s.io", "karpenter", "k8s.aws", "amazonaws.com", "azure.com", "google.com"),
    *("alibabacloud.com", "oraclecloud.com", "ibm-cloud", "digitalocean.com"),
)
"""Parts of the domains whose labels Karpenter or a cloud provider may set on a new node."""
_NOWHERE: Final = ("NotIn", "DoesNotExist")
"""Operators that a node without the label satisfies."""


def why_no_node(pod: PodSpec, pool: NodePool) -> str | None:
    """Why a NodePool creates no node for a pod, as a clause; None if it may create one."""
    name = pool.name
    for taint in pool.spec.template.spec.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not tolerates(pod, taint):
            return f"{name} has the taint {taint.key}, which the pods don't tolerate"
    limits = _limits(pool)
    selected = [_is(key, value) for key, value in pod.node_selector.items()]
    anywhere = pod.affinity.node_affinity.required is None
    terms = (NodeSelectorTerm(),) if anywhere else required_terms(pod)
    unmet = [next(_unmet((*selected, *term.match_expressions), limits), None) for term in terms]
    if not unmet or None in unmet:
        return None
    key = unmet[0]
    return f"{name} {'excludes these values of' if key in limits else 'sets no label'} {key}"


def _is(key: str, value: str) -> Requirement:
    return Requirement(key=key, operator="In", values=(value,))


def _limits(pool: NodePool) -> dict[str, list[Requirement]]:
    """The requirements of a pool for the labels of its nodes, by label key."""
    template = pool.spec.template
    labels = {**template.metadata.labels, POOL: pool.name}
    found = {key: [_is(key, value)] for key, value in labels.items()}
    for each in template.spec.requirements:
        found.setdefault(each.key, []).append(each)
    return found


def _unmet(requirements: Iterable[Requirement], limits: Mapping[str, list[Requirement]]) -> Iterator[str]:
    """The label keys of a pod's requirements that no node of a pool can meet."""
    for each in requirements:
        if each.key in limits:
            possible = _overlap(each, limits[each.key])
        else:
            domain = each.key.rpartition("/")[0]
            possible = each.operator in _NOWHERE or any(part in domain for part in _PROVIDERS)
        if not possible:
            yield each.key


def _overlap(requirement: Requirement, limits: list[Requirement]) -> bool:
    """Whether one value of a label satisfies a pod and its pool."""
    every = (*limits, requirement)
    for enumerated in every:
        if enumerated.operator == "In":
            candidates = ({requirement.key: value} for value in enumerated.values)
            return any(all(matches(each, labels) for each in every) for labels in candidates)
    if any(each.operator == "DoesNotExist" for each in limits):
        return requirement.operator in _NOWHERE
    return True  # ranges and exclusions: assume that they overlap
