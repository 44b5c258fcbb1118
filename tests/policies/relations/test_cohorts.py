"""What a queue of Kueue can use at most: the amounts of `potentialAvailable` in Kueue's sources."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from policies.core.listing import Listing
from policies.core.resources import Resource
from policies.kube.json import Json
from policies.relations import cohorts
from policies.relations.cohorts import Quota, greatest_quota

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
    return greatest_quota(queues[0], "h100", GPU, Watched(queues, known))


CASES: list[tuple[list[Json], list[Json], int, str]] = [
    ([queue("a", 8, "")], [], 8, ""),
    ([queue("a", 8), queue("b", "4")], [], 12, "ml"),
    ([queue("a", 8), queue("b", 4, "other")], [], 8, "ml"),
    # A queue uses what it does not lend.
    ([queue("a", 8, lendingLimit=2), queue("b", 4, lendingLimit=1)], [], 9, "ml"),
    ([queue("a", 8, borrowingLimit=1), queue("b", 4)], [], 9, ""),
    ([queue("a", 8, borrowingLimit=9), queue("b", 4)], [], 12, "ml"),
    # Quota of the cohort itself, then of its parents.
    ([queue("a", 8)], [cohort("ml", nominal=3)], 11, "ml"),
    ([queue("a", 8)], [cohort("ml", "top", 3), cohort("top", nominal=5)], 16, "ml"),
    ([queue("a", 8)], [cohort("ml", "top", 3, borrowingLimit=1), cohort("top", nominal=5)], 12, "ml"),
    ([queue("a", 8)], [cohort("ml", "top", 3, lendingLimit=0), cohort("top", nominal=5)], 16, "ml"),
    (
        [queue("a", 8)],
        [{"metadata": {"name": "ml"}, "spec": {"parent": "top"}}, cohort("top", nominal=5)],
        13,
        "ml",
    ),
    # A cousin lends to the common parent, which need not exist as an object.
    ([queue("a", 8), queue("b", 6, "else")], [cohort("ml", "top"), cohort("else", "top")], 14, "ml"),
    (
        [queue("a", 8), queue("b", 6, "else")],
        [cohort("ml", "top"), cohort("else", "top", 0, lendingLimit=2)],
        10,
        "ml",
    ),
]


@pytest.mark.parametrize(("queues", "known", "amount", "where"), CASES)
def test_the_greatest_quota(queues: list[Json], known: list[Json], amount: int, where: str) -> None:
    assert greatest(queues, known) == Quota(Decimal(amount), where)


def test_an_unknown_part_of_the_tree_leaves_the_limit_of_the_queue() -> None:
    assert greatest([queue("a", 8), queue("b", 4)], None) is None, "cohorts may not be read"
    assert greatest([queue("a", 8, borrowingLimit=1), queue("b", 4)], None) == Quota(Decimal(9))
    cycle = [cohort("ml", "top"), cohort("top", "ml")]
    assert greatest([queue("a", 8)], cycle) is None
    below = [cohort("ml", "top"), cohort("x", "y"), cohort("y", "x"), cohort("y", "top")]
    assert greatest([queue("a", 8)], below) is None
    assert greatest([queue("a", "many"), queue("b", 4)], []) is None
    assert greatest([queue("a", 8), queue("b", 4, lendingLimit="few")], []) is None


def test_a_large_tree_is_not_added_up() -> None:
    members = Listing([queue(f"q{n}", 1) for n in range(20)]).by(cohorts._BY_COHORT)
    for left, amount in ((20, Decimal(20)), (10, None)):
        assert cohorts._Tree(members, None, "h100", GPU, left).available("ml") == amount
    chain = [cohort("ml" if n == 0 else f"c{n}", f"c{n + 1}") for n in range(5_000)]
    assert greatest([queue("a", 8)], chain) is None
