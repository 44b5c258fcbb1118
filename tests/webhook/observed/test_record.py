"""The record: bounded, clamped, the same for the same observations."""

import json
from typing import Any

import pytest

from webhook.observed.record import (
    MAX_BYTES,
    MAX_ENTRIES,
    MAX_STARTS,
    Ended,
    Entry,
    ObservedStart,
    Record,
    as_config_map,
)

RUN = "0123456789ab"
KEY = f"Deployment/llm/server@{RUN}"
DAY = 24 * 3600
NOW = 1_800_000_000


WHERE = {"namespace": "ml", "key": KEY, "at": NOW, "node_type": "A100"}


def start(load: int, **other: Any) -> ObservedStart:
    times: dict[str, Any] = {"pull": 3, "ready": load + 3, "first": True, "place": ""}
    return ObservedStart(**{**WHERE, **times, **other}, load=load)


def end(reason: str, **other: Any) -> Ended:
    return Ended(**{**WHERE, **other}, reason=reason)


def after(*observations: ObservedStart | Ended) -> Record:
    record = Record()
    for each in observations:
        record.add([each], NOW)
    return record


def entry(*observations: ObservedStart | Ended) -> Entry:
    return after(*observations).namespaces["ml"][KEY]


def basis(*observations: ObservedStart | Ended) -> tuple[int, int] | None:
    return entry(*observations).basis


FIVE, SLOW = [start(100)] * 5, [start(400)] * 5


@pytest.mark.parametrize(
    ("observations", "expected"),
    [
        (FIVE[:4], (100, 4)),
        (FIVE, (100, 5)),
        ([*FIVE, start(124)], (100, 5)),
        ([*FIVE, start(126)], (126, 6)),
        ([*FIVE, *[start(101)] * 5], (100, 10)),
        ([*SLOW, *[start(50)] * (MAX_STARTS - 1)], (400, 20)),
        ([*SLOW, *[start(50)] * MAX_STARTS], (50, 5 + MAX_STARTS)),
        ([start(100), start(900, first=False)], (900, 1)),
        ([start(100), end("StartupProbe", after=600)], (100, 1)),
    ],
)
def test_the_basis_changes_only_with_the_slowest_start(
    observations: list[ObservedStart | Ended], expected: tuple[int, int]
) -> None:
    assert basis(*observations) == expected


def test_restarts_and_known_places_count_only_if_they_are_slower() -> None:
    found = entry(start(100), *[start(5, first=False)] * 1_000)
    assert (found.starts, found.fresh, found.loads, found.basis) == (1_001, 1, [100], (100, 1))
    found = entry(start(100, place="a"), start(5, place="a"), start(7, place="b"))
    assert (found.fresh, found.loads) == (2, [7, 100])


def test_a_failed_start_is_kept_until_a_slower_one_became_ready() -> None:
    failed = end("StartupProbe", after=600)
    assert entry(start(100), failed, start(90)).killed == 600
    assert entry(start(100), failed, start(700)).killed == 0


def test_ends_are_counted_by_node_type_within_the_bound() -> None:
    many = [end("Error 1", node_type=f"type-{number}" + "x" * 200) for number in range(50)]
    ends = entry(*many, end("Error 1", node_type=""), *many[:1]).ends["Error 1"]
    assert ends.count == 52
    assert sorted(ends.nodes.values()) == [1, 1, 1, 2, 46]
    assert ends.nodes["other"] == 46
    assert all(len(name) <= 120 for name in ends.nodes)
    text = json.dumps(
        {KEY: {"ends": {"Evicted": {"count": 1, "first": 1, "last": 1, "nodes": {"A100": -1}}}}}
    )
    assert Record.load({"ml": text}).namespaces == {}


@pytest.mark.parametrize("value", [10**15, 7 * DAY])
def test_values_are_clamped(value: int) -> None:
    assert entry(start(value)).slowest == 7 * DAY
    text = json.dumps({KEY: {"seen": NOW, "nodes": {"x" * 500: {"load": [value, -5]}}}})
    [(name, times)] = Record.load({"ml": text}).namespaces["ml"][KEY].nodes.items()
    assert (len(name), times.load) == (120, (7 * DAY, 0))


def test_garbage_is_dropped_and_the_rest_stays() -> None:
    before = after(start(100))
    sound = before.dump()["ml"]
    other = json.loads(sound) | {
        "no key": {},
        f"Deployment/llm/a@{RUN}": {"starts": "many"},
        f"Deployment/llm/b@{RUN}": {"nodes": {str(number): {} for number in range(100)}},
        f"Deployment/llm/c@{RUN}": {"nodes": {"A100": {"load": [1] * 1_000}}},
        f"Deployment/llm/d@{RUN}": {"surprise": 1},
        f"Deployment/llm/e@{RUN}": 7,
    }
    assert Record.load({"ml": json.dumps(other)}).dump() == {"ml": sound}
    assert Record.load({"ml": "{", "b": "7"}, before).dump() == {"ml": sound}, "the last good one"
    assert Record.load({"ml": None, "b": 7}).dump() == {}


def test_a_namespace_cannot_push_out_another() -> None:
    record = Record()
    record.add([start(100, namespace="small", at=NOW - 30 * DAY)], NOW)
    keys = [f"Deployment/{'x' * 200}{n}/server@{RUN}" for n in range(300)]
    for space in range(10):
        many = [start(100, namespace=f"big-{space}", key=key, place=key[-21:-13]) for key in keys]
        record.add(many, NOW)
        if not space:
            assert len(record.namespaces["big-0"]) == MAX_ENTRIES
    record.add([end(f"Error {n}", namespace="big-0", key=key) for key in keys[-200:] for n in range(30)], NOW)
    assert all(len(entries) <= MAX_ENTRIES for entries in record.namespaces.values())
    data = record.dump()
    assert sum(len(name) + len(value) for name, value in data.items()) <= MAX_BYTES
    assert "small" in data


def test_old_entries_are_dropped_and_times_in_the_future_are_limited() -> None:
    record = after(start(100, at=NOW + 1_000 * DAY))
    assert record.namespaces["ml"][KEY].seen == NOW
    record.add([start(5, namespace="other", at=NOW + 60 * DAY)], NOW + 60 * DAY)
    assert record.dump().keys() == {"other"}


def test_an_observation_with_a_malformed_key_is_dropped() -> None:
    assert after(start(5, key=f"Pod/{'x' * 300}/server@{RUN}")).dump() == {}


def test_the_config_map_keeps_other_metadata() -> None:
    before = {
        "metadata": {"name": "o", "resourceVersion": "7", "labels": {"team": "a"}, "annotations": {"b": "c"}}
    }
    found = as_config_map(after(start(1)), "ns", "o", NOW, before)
    assert found["metadata"]["resourceVersion"] == "7"
    assert found["metadata"]["labels"]["team"] == "a"
    assert found["metadata"]["annotations"] == {"b": "c", "mlchassis.dev/observed-until": str(NOW)}
