"""Which listings of the cluster an answer rests on, and whether they are still the current ones."""

from __future__ import annotations

from weakref import ReferenceType, ref

from policies.core.facts import Cluster
from policies.core.listing import Listing
from policies.core.resources import Resource

Consulted = tuple[tuple[Resource, str | None, "ReferenceType[Listing] | None"], ...]
"""The listings that a decision rests on; None where a resource was not known."""


class Recorded:
    """A cluster that keeps which of its listings were asked for."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._asked: dict[tuple[Resource, str | None], Listing | None] = {}

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        found = self._asked[resource, namespace] = self._cluster.listing(resource, namespace)
        return found

    def consulted(self) -> Consulted:
        return tuple(
            (resource, namespace, None if found is None else ref(found))
            for (resource, namespace), found in self._asked.items()
        )


def current(consulted: Consulted, cluster: Cluster) -> bool:
    for resource, namespace, known in consulted:
        found = cluster.listing(resource, namespace)
        if found is None:
            if known is not None:
                return False
        elif known is None or known() is not found:
            return False
    return True
