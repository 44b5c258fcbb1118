"""Evaluating node affinity and tolerations, and adding requirements and preferences.

The terms of `nodeSelectorTerms` are alternatives, and a term requires all its expressions, so a requirement
is added to every term. A term without expressions and fields matches no node and stays as it is. Semantics:
`k8s.io/component-helpers/scheduling/corev1/nodeaffinity` and `.../corev1/helpers.go`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from policies.kube.json import Json, appended, dig, mapping, maps, replaced, strings, text
from policies.kube.selectors import requirement_matches

Expression: TypeAlias = Json
"""A node selector requirement: key, operator, and values."""

NODE_AFFINITY: Final = ("spec", "affinity", "nodeAffinity")
REQUIRED: Final = (*NODE_AFFINITY, "requiredDuringSchedulingIgnoredDuringExecution")
TERMS: Final = (*REQUIRED, "nodeSelectorTerms")
PREFERRED: Final = (*NODE_AFFINITY, "preferredDuringSchedulingIgnoredDuringExecution")
NAME_FIELD: Final = "metadata.name"

MAX_TERMS: Final = 64
MAX_EXPRESSIONS: Final = 512
MAX_VALUES: Final = 4096
MAX_LABELS: Final = 128
MAX_TOLERATIONS: Final = 256
"""Limits for a pod's own conditions, which are compared with every node and multiplied by added labels."""


def is_within_limits(pod: Json) -> bool:
    """Whether a pod's node conditions are few enough. Thousands of terms, compared with thousands of nodes,
    would take seconds and megabytes."""
    if len(maps(pod, "spec", "tolerations")) > MAX_TOLERATIONS:
        return False
    if len(mapping(pod, "spec", "nodeSelector")) > MAX_LABELS:
        return False
    if dig(pod, *NODE_AFFINITY) is None:
        return True
    required, preferred = maps(pod, *TERMS), maps(pod, *PREFERRED)
    if len(required) + len(preferred) > MAX_TERMS:
        return False
    terms = (*required, *(mapping(each, "preference") for each in preferred))
    requested = [
        each for term in terms for field in ("matchExpressions", "matchFields") for each in maps(term, field)
    ]
    values = sum(len(strings(each, "values")) for each in requested)
    return len(requested) <= MAX_EXPRESSIONS and values <= MAX_VALUES


# --- reading -----------------------------------------------------------------------------------


def admits(pod: Json, name: str, labels: Mapping[str, str], *, partial: bool = False) -> bool:
    """Whether the pod's node selector and required node affinity admit a node. `partial`: the node may have
    further labels."""
    selector = mapping(pod, "spec", "nodeSelector")
    if any(
        labels.get(key) != value for key, value in selector.items() if not (partial and key not in labels)
    ):
        return False
    if dig(pod, *REQUIRED) is None:
        return True
    return any(_term_admits(term, name, labels, partial) for term in maps(pod, *TERMS))


def _term_admits(term: Json, name: str, labels: Mapping[str, str], partial: bool) -> bool:
    expressions, fields = maps(term, "matchExpressions"), maps(term, "matchFields")
    if not expressions and not fields:
        return False
    return all(matches(expression, labels, partial=partial) for expression in expressions) and all(
        text(field, "key") == NAME_FIELD and (partial or matches(field, {NAME_FIELD: name}))
        for field in fields
    )


def matches(expression: Expression, labels: Mapping[str, str], *, partial: bool = False) -> bool:
    """Whether labels fulfil one node selector requirement."""
    key, operator = text(expression, "key"), expression.get("operator")
    if partial and key not in labels:
        return True
    if operator not in ("Gt", "Lt"):
        return requirement_matches(expression, labels)
    values = strings(expression, "values")
    number, bound = _whole(labels.get(key)), _whole(values[0] if len(values) == 1 else None)
    if number is None or bound is None:
        return False
    return number > bound if operator == "Gt" else number < bound


def _whole(value: str | None) -> int | None:
    try:
        return None if value is None else int(value)
    except ValueError:
        return None


def tolerates(pod: Json, taint: Mapping[str, Any]) -> bool:
    """Whether one of the pod's tolerations tolerates a taint."""
    return any(_tolerates(toleration, taint) for toleration in maps(pod, "spec", "tolerations"))


def _tolerates(toleration: Json, taint: Mapping[str, Any]) -> bool:
    if text(toleration, "effect") not in ("", taint.get("effect")):
        return False
    key = text(toleration, "key")
    if key and key != taint.get("key"):
        return False
    match text(toleration, "operator"):
        case "" | "Equal":
            return bool(key) and text(toleration, "value") == (taint.get("value") or "")
        case "Exists":
            return True
    return True  # Gt and Lt are not evaluated, so they tolerate all


def required_keys(pod: Json) -> set[str]:
    """The label keys in the pod's node selector and required node affinity."""
    keys = set(mapping(pod, "spec", "nodeSelector"))
    return keys.union(*(_keys(term) for term in maps(pod, *TERMS)))


def _keys(term: Json) -> set[str]:
    return {text(expression, "key") for expression in maps(term, "matchExpressions")}


def can_append(pod: Json, path: Sequence[str]) -> bool:
    """Whether the path leads to a list, or its end is absent. Malformed fields are left to the API server."""
    value: Any = pod
    for step in path:
        if not isinstance(value, dict):
            return False
        value = value.get(step)
        if value is None:
            return True
    return isinstance(value, list)


# --- narrowing ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alternative:
    """Expressions that are required together."""

    expressions: tuple[Expression, ...]
    labels: Mapping[str, str] | None = None
    """The known labels of the nodes of a pool, if only these fulfil the expressions. The alternative is not
    added to terms that exclude these nodes."""


def require(pod: Json, alternatives: Sequence[Alternative], *, unless: Set[str]) -> Json:
    """The pod, with one of the alternatives required.

    A node selector or a term with a key in `unless` stays as it is, since the user has decided; so does a
    term that contains an alternative. A required affinity without terms is left to the API server.
    """
    if not alternatives or not unless.isdisjoint(mapping(pod, "spec", "nodeSelector")):
        return pod
    if not can_append(pod, TERMS):
        return pod
    if dig(pod, *REQUIRED) is None:
        return replaced(pod, TERMS, [{"matchExpressions": list(each.expressions)} for each in alternatives])
    terms = dig(pod, *TERMS)
    if not isinstance(terms, list):
        return pod
    narrowed = [new for term in terms for new in _narrowed(term, alternatives, unless)]
    return pod if narrowed == terms else replaced(pod, TERMS, narrowed)


def _narrowed(term: Any, alternatives: Sequence[Alternative], unless: Set[str]) -> Iterable[Any]:
    present = maps(term, "matchExpressions")
    matches_nothing = not present and not maps(term, "matchFields")
    fulfilled = any(all(each in present for each in alternative.expressions) for alternative in alternatives)
    if matches_nothing or fulfilled or not unless.isdisjoint(_keys(term)):
        return (term,)
    fitting = [
        alternative
        for alternative in alternatives
        if alternative.labels is None
        or all(matches(each, alternative.labels, partial=True) for each in present)
    ]
    return [{**term, "matchExpressions": [*present, *each.expressions]} for each in fitting or alternatives]


def prefer(pod: Json, weight: int, expressions: Sequence[Expression]) -> Json:
    """The pod with a preference for all the expressions, unless its own preferences use one of the keys."""
    keys = {text(expression, "key") for expression in expressions}
    present = maps(pod, *PREFERRED)
    if not can_append(pod, PREFERRED):
        return pod
    if any(not keys.isdisjoint(_keys(mapping(each, "preference"))) for each in present):
        return pod
    term = {"weight": weight, "preference": {"matchExpressions": list(expressions)}}
    return appended(pod, PREFERRED, term)
