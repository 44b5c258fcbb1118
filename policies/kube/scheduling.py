"""Which nodes a pod's own conditions admit: node selector, required node affinity, tolerations.

The terms of `nodeSelectorTerms` are alternatives, and a term requires all its expressions; a term without
expressions and fields matches no node. Semantics: `k8s.io/component-helpers/scheduling/corev1/nodeaffinity`
and `.../corev1/helpers.go`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from policies.kube.objects.metadata import Requirement
from policies.kube.objects.nodes import Taint
from policies.kube.objects.placement import NodeSelectorTerm, Toleration
from policies.kube.objects.pods import PodSpec

NAME_FIELD: Final = "metadata.name"

MAX_TERMS: Final = 64
MAX_EXPRESSIONS: Final = 512
MAX_VALUES: Final = 4096
MAX_LABELS: Final = 128
MAX_TOLERATIONS: Final = 256
"""Limits for a pod's own conditions, which are compared with every node and multiplied by added labels."""


def is_within_limits(pod: PodSpec) -> bool:
    """Whether a pod's node conditions are few enough. Thousands of terms, compared with thousands of nodes,
    would take seconds and megabytes."""
    if len(pod.tolerations) > MAX_TOLERATIONS or len(pod.node_selector) > MAX_LABELS:
        return False
    if pod.affinity.node_affinity.required is None and not pod.affinity.node_affinity.preferred:
        return True
    terms = (*required_terms(pod), *(each.preference for each in pod.affinity.node_affinity.preferred))
    if len(terms) > MAX_TERMS:
        return False
    requested = [each for term in terms for each in (*term.match_expressions, *term.match_fields)]
    values = sum(len(each.values) for each in requested)
    return len(requested) <= MAX_EXPRESSIONS and values <= MAX_VALUES


def required_terms(pod: PodSpec) -> tuple[NodeSelectorTerm, ...]:
    """The alternatives of the required node affinity."""
    required = pod.affinity.node_affinity.required
    return () if required is None else required.node_selector_terms


def admits(pod: PodSpec, name: str, labels: Mapping[str, str], *, partial: bool = False) -> bool:
    """Whether the pod's node selector and required node affinity admit a node. `partial`: the node may have
    further labels."""
    if any(
        labels.get(key) != value
        for key, value in pod.node_selector.items()
        if not (partial and key not in labels)
    ):
        return False
    if pod.affinity.node_affinity.required is None:
        return True
    return any(_term_admits(term, name, labels, partial) for term in required_terms(pod))


def _term_admits(term: NodeSelectorTerm, name: str, labels: Mapping[str, str], partial: bool) -> bool:
    expressions, fields = term.match_expressions, term.match_fields
    if not expressions and not fields:
        return False
    return all(matches(expression, labels, partial=partial) for expression in expressions) and all(
        field.key == NAME_FIELD and (partial or matches(field, {NAME_FIELD: name})) for field in fields
    )


def matches(expression: Requirement, labels: Mapping[str, str], *, partial: bool = False) -> bool:
    """Whether labels fulfil one node selector requirement."""
    if partial and expression.key not in labels:
        return True
    if expression.operator not in ("Gt", "Lt"):
        return expression.matches(labels)
    values = expression.values
    number, bound = _whole(labels.get(expression.key)), _whole(values[0] if len(values) == 1 else None)
    if number is None or bound is None:
        return False
    return number > bound if expression.operator == "Gt" else number < bound


def _whole(value: str | None) -> int | None:
    try:
        return None if value is None else int(value)
    except ValueError:
        return None


def lasting(taints: Iterable[Taint]) -> tuple[Taint, ...]:
    """The taints that exclude pods, without those of a temporary state."""
    return tuple(
        taint
        for taint in taints
        if taint.effect != "PreferNoSchedule" and not taint.key.startswith("node.kubernetes.io/")
    )


def untolerated(pod: PodSpec, taints: Iterable[Taint]) -> Taint | None:
    """The first lasting taint that a pod does not tolerate."""
    return next((each for each in lasting(taints) if not tolerates(pod, each)), None)


def tolerates(pod: PodSpec, taint: Taint) -> bool:
    """Whether one of the pod's tolerations tolerates a taint."""
    return any(_tolerates(toleration, taint) for toleration in pod.tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator in ("", "Equal"):
        return bool(toleration.key) and toleration.value == taint.value
    return True  # Exists; Gt and Lt are not evaluated, so they tolerate all


def required_keys(pod: PodSpec) -> set[str]:
    """The label keys in the pod's node selector and required node affinity."""
    keys = set(pod.node_selector)
    for term in required_terms(pod):
        keys.update(each.key for each in term.match_expressions)
    return keys
