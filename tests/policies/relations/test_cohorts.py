"""What a queue of Kueue can use at most: the amounts of `potentialAvailable` in Kueue's sources."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from policies.core.facts import Facts
from policies.core.listing import Listing
from policies.core.resources import Resource
from policies.kube.json import Json
from policies.kube.objects.queues import ClusterQueue
from policies.kube.objects.reading import read
from policies.relations import cohorts
from policies.relations.cohorts import Quota, greatest_quota
from tests.tables import table

GPU = "nvidia.com/gpu"


def groups(nominal: object, **limits: object) -> list[Json]:
    quota = {"name": GPU, "nominalQuota": nominal, **limits}
    return [{"coveredResources": [GPU], "flavors": [{"name": "h100", "resources": [quota]}]}]


def queue(name: str, nominal: object, cohort: str = "ml", **limits: object) -> Json:
    spec = {"cohort": cohort, "resourceGroups": groups(nominal, **limits)}
    return {"metadata": {"name": name}, "spec": spec}


def cohort(name: str, parent: str = "", nominal: object = None, **limits: object) -> Json:
    spec: Json = {"parentName": parent} if parent else {}
    if nominal is not None:
        spec["resourceGroups"] = groups(nominal, **limits)
    return {"metadata": {"name": name}, "spec": spec}


class Watched:
    """A cluster whose queues and cohorts are all known."""

    def __init__(self, queues: list[Json], known: list[Json] | None) -> None:
        self.listings: dict[Any, Listing | None] = {
            Resource.CLUSTER_QUEUES: Listing(queues),
            Resource.COHORTS: None if known is None else Listing(known),
        }

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        return self.listings[resource]


def greatest(queues: list[Json], known: list[Json] | None = None) -> Quota | None:
    """That of the first queue."""
    facts = Facts(cluster=Watched(queues, known))
    return greatest_quota(read(queues[0], ClusterQueue), "h100", GPU, facts)


A, B, COUSIN = queue("a", 8), queue("b", 4), queue("b", 6, "else")
TOP = cohort("top", nominal=5)


@table(
    ("queues", "known", "amount", "where"),
    [
        ([queue("a", 8, "")], [], 8, ""),
        ([A, queue("b", "4")], [], 12, "ml"),
        ([A, queue("b", 4, "other")], [], 8, "ml"),
        # A queue uses its quota that it does not lend.
        ([queue("a", 8, lendingLimit=2), queue("b", 4, lendingLimit=1)], [], 9, "ml"),
        ([queue("a", 8, borrowingLimit=1), B], [], 9, ""),
        ([queue("a", 8, borrowingLimit=9), B], [], 12, "ml"),
        # Quota of the cohort itself, then of its parents.
        ([A], [cohort("ml", nominal=3)], 11, "ml"),
        ([A], [cohort("ml", "top", 3), TOP], 16, "ml"),
        ([A], [cohort("ml", "top", 3, borrowingLimit=1), TOP], 12, "ml"),
        ([A], [cohort("ml", "top", 3, lendingLimit=0), TOP], 16, "ml"),
        ([A], [{"metadata": {"name": "ml"}, "spec": {"parent": "top"}}, TOP], 13, "ml"),
        # A cousin lends to the common parent, which need not exist as an object.
        ([A, COUSIN], [cohort("ml", "top"), cohort("else", "top")], 14, "ml"),
        ([A, COUSIN], [cohort("ml", "top"), cohort("else", "top", 0, lendingLimit=2)], 10, "ml"),
    ],
)
def test_the_greatest_quota(queues: list[Json], known: list[Json], amount: int, where: str) -> None:
    assert greatest(queues, known) == Quota(Decimal(amount), where)


@pytest.mark.parametrize(
    ("queues", "known", "expected"),
    [
        ([A, B], None, None),
        ([queue("a", 8, borrowingLimit=1), B], None, Quota(Decimal(9))),
        ([A], [cohort("ml", "top"), cohort("top", "ml")], None),
        ([A], [cohort("ml", "top"), cohort("x", "y"), cohort("y", "x"), cohort("y", "top")], None),
        ([queue("a", "many"), B], [], None),
        ([A, queue("b", 4, lendingLimit="few")], [], None),
        ([A], [cohort("ml" if n == 0 else f"c{n}", f"c{n + 1}") for n in range(5_000)], None),
    ],
    ids=["unknown cohorts", "own limit", "cycle", "cycle below", "quota", "lending limit", "deep"],
)
def test_an_unknown_part_of_the_tree_leaves_the_limit_of_the_queue(
    queues: list[Json], known: list[Json] | None, expected: Quota | None
) -> None:
    assert greatest(queues, known) == expected


def test_a_large_tree_is_not_added_up() -> None:
    members = Listing([queue(f"q{n}", 1) for n in range(20)]).objects(ClusterQueue)
    for left, amount in ((20, Decimal(20)), (10, None)):
        assert cohorts._Tree(members, None, "h100", GPU, left).available("ml") == amount
