"""Results are kept by one thing and one key."""

from __future__ import annotations

from policies.core.facts import Facts
from policies.kube.json import Json
from policies.kube.pods import Container, Role
from policies.kube.results import Result, Results

COUNT: Result[int] = Result()
BY_NAME: Result[dict[str, int]] = Result()


def test_two_keys_do_not_share_a_value() -> None:
    kept = Results()
    other: Result[int] = Result()
    kept[COUNT] = 1
    assert kept.get(COUNT) == 1
    assert kept.get(other) is None


def test_a_table_is_made_once() -> None:
    kept = Results()
    kept.table(BY_NAME)["a"] = 1
    assert kept.table(BY_NAME) == {"a": 1}


def test_results_are_a_key_of_their_own_even_if_they_hold_the_same() -> None:
    one, two = Results(), Results()
    assert {one: "one", two: "two"}[one] == "one"


def test_a_containers_results_outlive_an_edit_of_its_probes_only() -> None:
    container = Container({"name": "a", "image": "x"}, "containers", 0, Role.MAIN)
    container.results[COUNT] = 1
    assert container.edited({**container.spec, "livenessProbe": {}}).results.get(COUNT) == 1
    assert container.edited({**container.spec, "image": "y"}).results.get(COUNT) is None


def test_facts_keep_results_by_pod_not_by_its_content() -> None:
    facts = Facts()
    pod: Json = {"metadata": {"name": "a"}}
    facts.about(pod)[COUNT] = 1
    assert facts.about(pod).get(COUNT) == 1
    assert facts.about(dict(pod)).get(COUNT) is None
