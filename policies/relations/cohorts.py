"""The maximum of a resource that a ClusterQueue of Kueue can use, with the quota that its cohorts lend.

Law: an amount is never too low. If a queue or cohort may be unknown, only the queue's own limit counts.

Semantics: `potentialAvailable` and `updateCohortResourceNode` in `pkg/cache/scheduler/resource_node.go` of
Kueue 0.14.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final, TypeAlias

from msgspec import Struct

from policies.core.facts import Facts
from policies.core.listing import Listing, Objects, TypedIndex
from policies.kube.objects.metadata import Quantity
from policies.kube.objects.queues import ClusterQueue, Cohort
from policies.kube.quantities import parse_quantity

_MAX_MEMBERS: Final = 1_000
"""Queues and cohorts of one tree."""
_DEEPEST: Final = 20
"""Levels of cohorts."""
_ZERO: Final = Decimal(0)


class Quota(Struct, frozen=True):
    """An amount that a queue cannot exceed."""

    amount: Decimal
    cohort: str = ""
    """The cohort that sets the limit; empty if the queue itself does."""


def greatest_quota(queue: ClusterQueue, flavor: str, resource: str, facts: Facts) -> Quota | None:
    """None if no limit is known."""
    try:
        own = _limits(queue, flavor, resource)
        name = cohort_of(queue)
        if not name:
            return Quota(own.nominal)
        limits = [] if own.borrowing is None else [Quota(own.nominal + own.borrowing)]
        lent = _lent(name, flavor, resource, facts)
        if lent is not None:
            limits.append(Quota(own.local_quota(own.nominal) + lent, name))
    except ValueError:
        return None
    return min(limits, key=lambda limit: limit.amount, default=None)


def cohort_of(queue: ClusterQueue) -> str:
    """The cohort of a ClusterQueue: `cohort` in v1beta1, `cohortName` in v1beta2."""
    return queue.spec.cohort or queue.spec.cohort_name


class _Limits(Struct, frozen=True):
    """The quotas of a queue or a cohort for one resource of one flavor."""

    nominal: Decimal = _ZERO
    borrowing: Decimal | None = None
    lending: Decimal | None = None

    def local_quota(self, subtree: Decimal) -> Decimal:
        """The part of a subtree's quota that is not lent."""
        return _ZERO if self.lending is None else max(_ZERO, subtree - self.lending)


def _limits(member: ClusterQueue | Cohort, flavor: str, resource: str) -> _Limits:
    """Raises ValueError."""
    for group in member.spec.resource_groups:
        for quotas in group.flavors:
            for each in quotas.resources if quotas.name == flavor else ():
                if each.name == resource:
                    return _Limits(
                        parse_quantity(each.nominal_quota),
                        _quantity(each.borrowing_limit),
                        _quantity(each.lending_limit),
                    )
    return _Limits()


def _quantity(value: Quantity | None) -> Decimal | None:
    return None if value is None else parse_quantity(value)


# --- the tree --------------------------------------------------------------------------------------


class _Tree(Struct):
    """The cohorts around a queue, for one resource of one flavor."""

    queues: Objects[ClusterQueue]
    cohorts: Objects[Cohort] | None
    flavor: str
    resource: str
    _left: int = _MAX_MEMBERS

    def available(self, name: str, below: frozenset[str] = frozenset()) -> Decimal | None:
        """The maximum that a cohort can give to one member; None if unknown."""
        if name in below or len(below) > _DEEPEST:
            return None  # Kueue admits nothing in a cycle
        cohort = self._named(name)
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
        queues = tuple(self.queues.by(_BY_COHORT, name))
        children = tuple(self.cohorts.by(_BY_PARENT, name)) if self.cohorts else ()
        self._left -= len(queues) + len(children)
        if self._left < 0:
            return None
        total = _limits(self._named(name), self.flavor, self.resource).nominal
        for queue in queues:
            own = _limits(queue, self.flavor, self.resource)
            total += own.nominal - own.local_quota(own.nominal)
        for child in children:
            below = self._subtree(child.name, above | {name})
            if below is None:
                return None
            total += below - _limits(child, self.flavor, self.resource).local_quota(below)
        return total

    def _named(self, name: str) -> Cohort:
        """The cohort of a name; one without quotas if there is no such object, as Kueue assumes."""
        found = None if self.cohorts is None else self.cohorts.named(name)
        return Cohort() if found is None else found


def _lent(name: str, flavor: str, resource: str, facts: Facts) -> Decimal | None:
    """The amount that a cohort can give to one member; None if unknown. Raises ValueError."""
    queues, cohorts = facts.cluster_objects(ClusterQueue), facts.cluster_objects(Cohort)
    if not queues or not _is_whole(name, queues, cohorts):
        return None
    cache, key = queues.listing.derive(_cache), (name, flavor, resource)
    found = cache.get(key)
    if found is None or found[0] is not cohorts:
        found = cache[key] = (cohorts, _Tree(queues, cohorts, flavor, resource).available(name))
    return found[1]


def _is_whole(name: str, queues: Objects[ClusterQueue], cohorts: Objects[Cohort] | None) -> bool:
    """Whether all members of a cohort are known. Manifests with only one queue of it show a part of it."""
    if not next(iter(queues)).is_manifest:
        return cohorts is not None
    if cohorts is not None and cohorts.named(name) is not None:
        return True
    return len(tuple(queues.by(_BY_COHORT, name))) > 1


_Cache: TypeAlias = dict[tuple[str, str, str], tuple[Objects[Cohort] | None, Decimal | None]]


def _cache(queues: Listing) -> _Cache:
    """Earlier results, with the cohorts that they follow from. The keys come from ClusterQueues only."""
    return {}


def _parent(cohort: Cohort) -> str:
    """The cohort above: `parent` in v1alpha1, `parentName` since."""
    return cohort.spec.parent_name or cohort.spec.parent


_BY_COHORT: Final = TypedIndex(ClusterQueue, lambda queue: filter(None, (cohort_of(queue),)))
_BY_PARENT: Final = TypedIndex(Cohort, lambda cohort: filter(None, (_parent(cohort),)))
