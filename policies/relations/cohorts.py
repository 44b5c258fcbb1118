"""The maximum of a resource that a ClusterQueue of Kueue can use, with the quota that its cohorts lend.

Law: an amount is never too low. If a queue or cohort may be unknown, only the queue's own limit counts.

Semantics: `potentialAvailable` and `updateCohortResourceNode` in `pkg/cache/scheduler/resource_node.go` of
Kueue 0.14.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

from policies.core.facts import Cluster, find_by_name
from policies.core.listing import Groups, Index, Listing, is_manifest
from policies.core.resources import Resource
from policies.kube.json import Json, maps, text
from policies.kube.quantities import parse_quantity

_MAX_MEMBERS: Final = 1_000
"""Queues and cohorts of one tree."""
_DEEPEST: Final = 20
"""Levels of cohorts."""
_ZERO: Final = Decimal(0)


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
            limits.append(Quota(own.local_quota(own.nominal) + lent, name))
    except ValueError:
        return None
    return min(limits, key=lambda limit: limit.amount, default=None)


def cohort_of(queue: Json) -> str:
    """The cohort of a ClusterQueue: `cohort` in v1beta1, `cohortName` in v1beta2."""
    return text(queue, "spec", "cohort") or text(queue, "spec", "cohortName")


@dataclass(frozen=True, slots=True)
class _Limits:
    """The quotas of a queue or a cohort for one resource of one flavor."""

    nominal: Decimal = _ZERO
    borrowing: Decimal | None = None
    lending: Decimal | None = None

    def local_quota(self, subtree: Decimal) -> Decimal:
        """The part of a subtree's quota that is not lent."""
        return _ZERO if self.lending is None else max(_ZERO, subtree - self.lending)


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
    _left: int = _MAX_MEMBERS

    def available(self, name: str, below: frozenset[str] = frozenset()) -> Decimal | None:
        """The maximum that a cohort can give to one member; None if unknown."""
        if name in below or len(below) > _DEEPEST:
            return None  # Kueue admits nothing in a cycle
        cohort = find_by_name(self.cohorts, name) or {}
        parent = _parent(cohort)
        subtree = self._subtree(name)
        if subtree is None or not parent:
            return subtree
        above = self.available(parent, below | {name})
        if above is None:
            return None
        own = _limits(cohort, self.flavor, self.resource)
        most = own.local_quota(subtree) + above
        return most if own.borrowing is None else min(most, subtree + own.borrowing)

    def _subtree(self, name: str, above: frozenset[str] = frozenset()) -> Decimal | None:
        """The quota of a cohort and its members; None if there are too many of them, or in a cycle."""
        if name in above or len(above) > _DEEPEST:
            return None
        queues, children = self.queues[name], self.cohorts.by(_BY_PARENT)[name] if self.cohorts else ()
        self._left -= len(queues) + len(children)
        if self._left < 0:
            return None
        total = _limits(find_by_name(self.cohorts, name) or {}, self.flavor, self.resource).nominal
        for queue in queues:
            own = _limits(queue, self.flavor, self.resource)
            total += own.nominal - own.local_quota(own.nominal)
        for child in children:
            below = self._subtree(text(child, "metadata", "name"), above | {name})
            if below is None:
                return None
            total += below - _limits(child, self.flavor, self.resource).local_quota(below)
        return total


def _lent(name: str, flavor: str, resource: str, cluster: Cluster) -> Decimal | None:
    """The amount that a cohort can give to one member; None if unknown. Raises ValueError."""
    queues, cohorts = cluster.listing(Resource.CLUSTER_QUEUES), cluster.listing(Resource.COHORTS)
    if not queues or not _is_whole(name, queues, cohorts):
        return None
    cache, key = queues.derive(_cache), (name, flavor, resource)
    found = cache.get(key)
    if found is None or found[0] is not cohorts:
        tree = _Tree(queues.by(_BY_COHORT), cohorts, flavor, resource)
        found = cache[key] = (cohorts, tree.available(name))
    return found[1]


def _is_whole(name: str, queues: Listing, cohorts: Listing | None) -> bool:
    """Whether all members of a cohort are known. Manifests with only one queue of it show a part of it."""
    if not is_manifest(queues[0]):
        return cohorts is not None
    return find_by_name(cohorts, name) is not None or len(queues.by(_BY_COHORT)[name]) > 1


_Cache: TypeAlias = dict[tuple[str, str, str], tuple[Listing | None, Decimal | None]]


def _cache(queues: Listing) -> _Cache:
    """Earlier results, with the cohorts that they follow from. The keys come from ClusterQueues only."""
    return {}


def _parent(cohort: Json) -> str:
    """The cohort above: `parent` in v1alpha1, `parentName` since."""
    return text(cohort, "spec", "parentName") or text(cohort, "spec", "parent")


_BY_COHORT: Final = Index(lambda queue: filter(None, (cohort_of(queue),)))
_BY_PARENT: Final = Index(lambda cohort: filter(None, (_parent(cohort),)))
