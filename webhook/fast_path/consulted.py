"""Which listings of the cluster an answer rests on, and whether they are still the current ones."""

from __future__ import annotations

from weakref import ReferenceType

from policies.core.facts import Cluster
from policies.core.listing import Listing
from policies.core.resources import Resource

Consulted = tuple[tuple[Resource, str | None, "ReferenceType[Listing] | None"], ...]
"""The listings that a decision rests on; None where a resource was not known."""


def current(consulted: Consulted, cluster: Cluster) -> bool:
    for resource, namespace, known in consulted:
        found = cluster.listing(resource, namespace)
        if found is None:
            if known is not None:
                return False
        elif known is None or known() is not found:
            return False
    return True
