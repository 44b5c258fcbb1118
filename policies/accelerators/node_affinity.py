"""Adding requirements and preferences to a pod's node affinity.

The terms of `nodeSelectorTerms` are alternatives, and a term requires all its expressions, so a requirement
is added to every term. A term without expressions and fields matches no node and stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Final, TypeAlias

from msgspec import Struct

from policies.kube.json import Json, appended, dig, mapping, maps, replaced, text
from policies.kube.objects.metadata import Requirement
from policies.kube.objects.reading import read
from policies.kube.scheduling import matches

Expression: TypeAlias = Json
"""A node selector requirement to be added: key, operator, and values."""

NODE_AFFINITY: Final = ("spec", "affinity", "nodeAffinity")
REQUIRED: Final = (*NODE_AFFINITY, "requiredDuringSchedulingIgnoredDuringExecution")
TERMS: Final = (*REQUIRED, "nodeSelectorTerms")
PREFERRED: Final = (*NODE_AFFINITY, "preferredDuringSchedulingIgnoredDuringExecution")


class Alternative(Struct, frozen=True):
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
        or all(matches(read(each, Requirement), alternative.labels, partial=True) for each in present)
    ]
    return [{**term, "matchExpressions": [*present, *each.expressions]} for each in fitting or alternatives]


def prefer(pod: Json, weight: int, expressions: Sequence[Expression]) -> Json:
    """The pod with a preference for all the expressions, unless its own preferences use one of the keys."""
    keys = {text(expression, "key") for expression in expressions}
    present = maps(pod, *PREFERRED)
    if any(not keys.isdisjoint(_keys(mapping(each, "preference"))) for each in present):
        return pod
    term = {"weight": weight, "preference": {"matchExpressions": list(expressions)}}
    return appended(pod, PREFERRED, term)


def _keys(term: Json) -> set[str]:
    return {text(expression, "key") for expression in maps(term, "matchExpressions")}
