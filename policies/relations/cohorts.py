"""The most of a resource that a ClusterQueue of Kueue can ever use, with what its cohorts lend.

Law: an amount is never too low. If a queue or cohort may be unknown, only the queue's own limit counts.

Semantics: `potentialAvailable` and `updateCohortResourceNode` in `pkg/cache/scheduler/resource_node.go` of
Kueue 0.14.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

from policies.core.facts import Cluster, named_in
from policies.core.listing import Groups, Index, Listing, is_manifest
from policies.core.resources import Resource
from policies.kube.json import Json, maps, text
from policies.kube.quantities import parse_quantity

_MOST_MEMBERS: Final = 1_000
"""Queues and cohorts of one tree that are added up."""
_DEEPEST: Final = 20
"""Cohorts above each other."""
_NONE: Final = Decimal(0)


@dataclass(frozen=True, slots=True)
class Quota:
    """An amount that a queue cannot exceed."""

    amount: Decimal
    cohort: str = ""
    """The cohort that sets the limit; empty if the queue itself does."""


def greatest_quota(queue: Json, flavor: str, resource: str, cluster: Cluster) -> Quota | None:
    """None if no limit is known."""
    try:
        own = _limits(queue, flavor, resource)
        name = cohort_of(queue)
        if not name:
            return Quota(own.nominal)
        limits = [] if own.borrowing is None else [Quota(own.nominal + own.borrowing)]
        lent = _lent(name, flavor, resource, cluster)
        if lent is not None:
            limits.append(Quota(own.kept(own.nominal) + lent, name))
    except ValueError:
        return None
    return min(limits, key=lambda limit: limit.amount, default=None)


def cohort_of(queue: Json) -> str:
    """The cohort of a ClusterQueue: `cohort` in v1beta1, `cohortName` in v1beta2."""
    return text(queue, "spec", "cohort") or text(queue, "spec", "cohortName")


@dataclass(frozen=True, slots=True)
class _Limits:
    """What a queue or a cohort declares for one resource of one flavor."""

    nominal: Decimal = _NONE
    borrowing: Decimal | None = None
    lending: Decimal | None = None

    def kept(self, below: Decimal) -> Decimal:
        """The part of `below` that is not lent (`localQuota`)."""
        return _NONE if self.lending is None else max(_NONE, below - self.lending)


def _limits(member: Json, flavor: str, resource: str) -> _Limits:
    """Raises ValueError."""
    for group in maps(member, "spec", "resourceGroups"):
        for quotas in maps(group, "flavors"):
            for each in maps(quotas, "resources") if text(quotas, "name") == flavor else ():
                if each.get("name") == resource:
                    return _Limits(
                        parse_quantity(each.get("nominalQuota")),
                        _quantity(each.get("borrowingLimit")),
                        _quantity(each.get("lendingLimit")),
                    )
    return _Limits()


def _quantity(value: Any) -> Decimal | None:
    return None if value is None else parse_quantity(value)


# --- the tree --------------------------------------------------------------------------------------


@dataclass
class _Tree:
    """The cohorts around a queue, for one resource of one flavor."""

    queues: Groups[str]
    cohorts: Listing | None
    flavor: str
    resource: str
    _left: int = _MOST_MEMBERS

    def available(self, name: str, below: frozenset[str] = frozenset()) -> Decimal | None:
        """The most that a cohort can give to one member; None if that is unknown."""
        if name in below or len(below) > _DEEPEST:
            return None  # Kueue admits nothing in a cycle
        cohort = named_in(self.cohorts, name) or {}
        parent = _parent(cohort)
        subtree = self._subtree(name)
        if subtree is None or not parent:
            return subtree
        above = self.available(parent, below | {name})
        if above is None:
            return None
        own = _limits(cohort, self.flavor, self.resource)
        most = own.kept(subtree) + above
        return most if own.borrowing is None else min(most, subtree + own.borrowing)

    def _subtree(self, name: str, above: frozenset[str] = frozenset()) -> Decimal | None:
        """What a cohort and its members have; None if there are too many of them, or in a cycle."""
        if name in above or len(above) > _DEEPEST:
            return None
        queues, children = self.queues[name], self.cohorts.by(_BY_PARENT)[name] if self.cohorts else ()
        self._left -= len(queues) + len(children)
        if self._left < 0:
            return None
        total = _limits(named_in(self.cohorts, name) or {}, self.flavor, self.resource).nominal
        for queue in queues:
            own = _limits(queue, self.flavor, self.resource)
            total += own.nominal - own.kept(own.nominal)
        for child in children:
            below = self._subtree(text(child, "metadata", "name"), above | {name})
            if below is None:
                return None
            total += below - _limits(child, self.flavor, self.resource).kept(below)
        return total


def _lent(name: str, flavor: str, resource: str, cluster: Cluster) -> Decimal | None:
    """What a cohort can give to one member; None if that is unknown. Raises ValueError."""
    queues, cohorts = cluster.listing(Resource.CLUSTER_QUEUES), cluster.listing(Resource.COHORTS)
    if not queues or not _is_whole(name, queues, cohorts):
        return None
    answers, key = queues.derive(_answers), (name, flavor, resource)
    found = answers.get(key)
    if found is None or found[0] is not cohorts:
        tree = _Tree(queues.by(_BY_COHORT), cohorts, flavor, resource)
        found = answers[key] = (cohorts, tree.available(name))
    return found[1]


def _is_whole(name: str, queues: Listing, cohorts: Listing | None) -> bool:
    """Whether all members of a cohort are known. Manifests are a part of the cluster, and with one queue of a
    cohort they show a part of it."""
    if not is_manifest(queues[0]):
        return cohorts is not None
    return named_in(cohorts, name) is not None or len(queues.by(_BY_COHORT)[name]) >= _SEVERAL


_Answers: TypeAlias = dict[tuple[str, str, str], tuple[Listing | None, Decimal | None]]


def _answers(queues: Listing) -> _Answers:
    """Earlier answers, with the cohorts that they were made of. Names come from ClusterQueues only."""
    return {}


_SEVERAL: Final = 2


def _in_cohort(queue: Json) -> Iterator[str]:
    name = cohort_of(queue)
    if name:
        yield name


def _parent(cohort: Json) -> str:
    """The cohort above: `parent` in v1alpha1, `parentName` since."""
    return text(cohort, "spec", "parentName") or text(cohort, "spec", "parent")


def _parent_of(cohort: Json) -> Iterator[str]:
    if _parent(cohort):
        yield _parent(cohort)


_BY_COHORT: Final = Index(_in_cohort)
_BY_PARENT: Final = Index(_parent_of)
