"""What is remembered about nodes between reviews."""

from __future__ import annotations

from policies.core.listing import Listing
from policies.kube.cache import LARGEST
from policies.kube.objects.pods import PodSpec
from policies.relations import domains


def test_long_selectors_do_not_fill_the_memory() -> None:
    nodes = Listing([{"metadata": {"name": "n", "labels": {}}}])
    long = LARGEST // 10
    for number in range(40):
        pod = PodSpec(node_selector={f"pool-{number}": "x" * long})
        assert domains.matches_no_node(pod, nodes)
    assert 0 < len(nodes.derive(domains._cache)) < 10


def test_a_result_is_computed_once() -> None:
    class Counted(Listing):
        rounds = 0

        def __iter__(self):  # type: ignore[no-untyped-def]
            self.rounds += 1
            return super().__iter__()

    nodes = Counted([{"metadata": {"name": "n", "labels": {"pool": "gpu"}}}])
    pod = PodSpec(node_selector={"pool": "gpu"})
    assert [domains.matches_no_node(pod, nodes) for _ in range(3)] == [False] * 3
    assert nodes.rounds == 1
