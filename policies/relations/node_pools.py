"""Whether Karpenter can create a node for a pod, by its NodePools.

Law: a NodePool can unless its labels, requirements or taints exclude the pod. Instance types are unknown
here, so labels that a cloud provider may set count as possible.

Semantics: `pkg/scheduling/requirements.go` and `pkg/apis/v1/labels.go` of Karpenter 1.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from policies.accelerators.node_affinity import REQUIRED, TERMS, matches, tolerates
from policies.kube.json import Json, dig, mapping, maps, strings, text

_POOL: Final = "karpenter.sh/nodepool"
_PROVIDERS: Final = (
    *("kubernetes.io", "k8s.io", "karpenter", "k8s.aws", "amazonaws.com", "azure.com", "google.com"),
    *("alibabacloud.com", "oraclecloud.com", "ibm-cloud", "digitalocean.com"),
)
"""Parts of the domains whose labels Karpenter or a cloud provider may set on a new node."""
_NOWHERE: Final = ("NotIn", "DoesNotExist")
"""Operators that a node without the label satisfies."""


def obstacle(pod: Json, pool: Json) -> str | None:
    """Why a NodePool creates no node for a pod, as a clause; None if it may create one."""
    name = text(pool, "metadata", "name")
    for taint in maps(pool, "spec", "template", "spec", "taints"):
        if text(taint, "effect") in ("NoSchedule", "NoExecute") and not tolerates(pod, taint):
            return f"{name} has the taint {text(taint, 'key')}, which the pods do not tolerate"
    limits = _limits(pool, name)
    selector = mapping(pod, "spec", "nodeSelector").items()
    selected = [{"key": key, "operator": "In", "values": [value]} for key, value in selector]
    terms = maps(pod, *TERMS) if dig(pod, *REQUIRED) is not None else [{}]
    unmet = [next(_unmet((*selected, *maps(term, "matchExpressions")), limits), None) for term in terms]
    if not unmet or None in unmet:
        return None
    key = unmet[0]
    return f"{name} {'excludes these values of' if key in limits else 'sets no label'} {key}"


def _limits(pool: Json, name: str) -> dict[str, list[Json]]:
    """The requirements of a pool for the labels of its nodes, by label key."""
    template = mapping(pool, "spec", "template")
    labels = {**mapping(template, "metadata", "labels"), _POOL: name}
    found = {key: [{"key": key, "operator": "In", "values": [value]}] for key, value in labels.items()}
    for each in maps(template, "spec", "requirements"):
        found.setdefault(text(each, "key"), []).append(each)
    return found


def _unmet(requirements: tuple[Json, ...], limits: Mapping[str, list[Json]]) -> Iterator[str]:
    """The label keys of a pod's requirements that no node of a pool can meet."""
    for each in requirements:
        key = text(each, "key")
        if key in limits:
            possible = _overlap(key, each, limits[key])
        else:
            domain = key.rpartition("/")[0]
            possible = each.get("operator") in _NOWHERE or any(part in domain for part in _PROVIDERS)
        if not possible:
            yield key


def _overlap(key: str, requirement: Json, limits: list[Json]) -> bool:
    """Whether one value of a label satisfies a pod and its pool."""
    for enumerated in (*limits, requirement):
        if enumerated.get("operator") == "In":
            candidates = ({key: value} for value in strings(enumerated, "values"))
            return any(all(matches(each, labels) for each in (*limits, requirement)) for labels in candidates)
    if any(each.get("operator") == "DoesNotExist" for each in limits):
        return requirement.get("operator") in _NOWHERE
    return True  # ranges and exclusions: assume that they overlap
