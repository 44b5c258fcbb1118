"""Whether Karpenter can make a node for a pod, from its NodePools.

Law: a NodePool counts as able unless its labels, requirements and taints exclude the pod. Instance types are
unknown here, so labels that a cloud's provider may set count as possible.

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
"""Parts of the domains whose labels Karpenter's core or a cloud's provider may set on a new node."""
_NOWHERE: Final = ("NotIn", "DoesNotExist")
"""Operators that a node without the label satisfies."""


def obstacle(pod: Json, pool: Json) -> str | None:
    """Why a NodePool makes no node for a pod, as half a sentence; None if it may make one."""
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
    """What a pool demands of each label of its nodes."""
    template = mapping(pool, "spec", "template")
    labels = {**mapping(template, "metadata", "labels"), _POOL: name}
    found = {key: [{"key": key, "operator": "In", "values": [value]}] for key, value in labels.items()}
    for each in maps(template, "spec", "requirements"):
        found.setdefault(text(each, "key"), []).append(each)
    return found


def _unmet(asked: tuple[Json, ...], limits: Mapping[str, list[Json]]) -> Iterator[str]:
    """The keys of labels that no node of a pool can have as a pod asks for them."""
    for each in asked:
        key = text(each, "key")
        if key in limits:
            possible = _overlap(key, each, limits[key])
        else:
            possible = each.get("operator") in _NOWHERE or _is_of_a_provider(key)
        if not possible:
            yield key


def _overlap(key: str, asked: Json, limits: list[Json]) -> bool:
    """Whether one value of a label satisfies a pod and its pool."""
    for enumerated in (*limits, asked):
        if enumerated.get("operator") == "In":
            candidates = ({key: value} for value in strings(enumerated, "values"))
            return any(all(matches(each, labels) for each in (*limits, asked)) for labels in candidates)
    if any(each.get("operator") == "DoesNotExist" for each in limits):
        return asked.get("operator") in _NOWHERE
    return True  # ranges and exclusions: assume that they overlap


def _is_of_a_provider(key: str) -> bool:
    domain = key.rpartition("/")[0]
    return any(part in domain for part in _PROVIDERS)
