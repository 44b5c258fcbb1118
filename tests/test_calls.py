"""Counts of calls and of changes of module."""

from __future__ import annotations

from benchmarks._reviews import SERVERS
from benchmarks._trips import ENDPOINTS, rows, trips
from policies.kube.json import dig, text
from policies.kube.metadata import controller
from tests.calls import Trip, trip


def test_calls_in_other_modules_are_counted_and_the_first_time_is_not() -> None:
    obj = {"metadata": {"name": "a"}}
    text(obj, "metadata", "name")
    once = trip(lambda: dig(obj, "metadata"))
    assert once == Trip({"policies.kube.json": 1}, 0)

    def thrice() -> None:
        dig(obj, "metadata")
        controller({})
        dig(obj, "metadata")

    way = trip(thrice)
    assert way.calls["policies.kube.metadata"] == 1
    assert way.changes == 2
    assert way.table().endswith(
        f"| {len(way.calls)} modules, 2 changes of module | {sum(way.calls.values())} |"
    )


def test_a_new_pod_of_each_server_is_counted_at_each_endpoint() -> None:
    ways = list(trips())
    found = [(image, endpoint) for image, endpoint, way in ways if way.calls["webhook.admission.engine"]]
    assert found == [(image, endpoint) for image, *_ in SERVERS for endpoint in ENDPOINTS]
    assert rows(ways).count("\n") + 1 == len(found)
