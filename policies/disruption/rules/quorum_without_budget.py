"""quorum-without-budget: stores of which drains may evict so many members that no majority is left."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from policies.core import data
from policies.core.contracts import Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.settings import Field, Model
from policies.disruption.budgets import budgets_of
from policies.kube.group_kinds import STATEFUL_SET
from policies.kube.images import image_matches
from policies.kube.objects.scaling import PodDisruptionBudget
from policies.kube.pods import Container, Role
from policies.rollouts.rollouts import count_of, minimum_replicas

_LEAST = 3
"""Members. Two have no majority without the other one: a budget cannot help."""


class Quorum(Model):
    """An entry of `quorums.yaml`."""

    name: str
    images: tuple[str, ...] = Field(min_length=1, description="its images, written as those of a preset")
    words: tuple[str, ...] = Field(
        (),
        description="arguments or `NAME=value` of its variables of which it must have one; `*` is any text",
    )
    source: str = Field(description="the documentation of its behaviour without a majority")


def check(target: Target, facts: Facts) -> Findings:
    members = minimum_replicas(target, facts)
    if members < _LEAST:
        return
    tolerated = (members - 1) // 2
    for template in target.templates:
        store = next(_stores(template), None)
        if store is None:
            continue
        own = list(budgets_of(template.typed.metadata.labels, facts))
        if not own and facts.whole is None:
            continue  # the next object that is applied may be the budget
        allowed = min((_allowed(each, members) for each in own), default=members)
        if allowed <= tolerated:
            continue
        which = (
            f"PodDisruptionBudget {own[0].name} allows {allowed} evictions at once"
            if own
            else "No PodDisruptionBudget selects the pods"
        )
        yield Finding(
            "spec.replicas",
            f"{which}: if drains evict {tolerated + 1} of the {members} members of {store.name} at the same "
            "time, the rest have no majority, and their clients wait until a member is back.",
            f"{'Set' if own else 'Add a PodDisruptionBudget with'} maxUnavailable {'to ' if own else ''}1.",
        )


def _stores(template: PodTemplate) -> Iterator[Quorum]:
    for container in template.containers(Role.MAIN):
        known = (each for each in _quorums() if image_matches(container.image, each.images))
        yield from (each for each in known if not each.words or _has(container, each.words))


def _has(container: Container, globs: tuple[str, ...]) -> bool:
    typed = container.typed
    words = (*typed.argv, *(f"{each.name}={each.value}" for each in typed.env))
    return any(fnmatchcase(word, glob) for word in words for glob in globs)


def _allowed(budget: PodDisruptionBudget, members: int) -> int:
    """How many of the members it allows to be evicted at once; 0 for values that the API server refuses."""
    most, least = budget.spec.max_unavailable, budget.spec.min_available
    if most is not None:
        return count_of(most, members, up=True) or 0
    kept = members if least is None else count_of(least, members, up=True)
    return 0 if kept is None else members - kept


_quorums = data.entries(Quorum, "policies.disruption", "quorums.yaml")


RULE = rule(__name__, check, (STATEFUL_SET,), unowned=True)
