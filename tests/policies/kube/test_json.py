import copy

from policies.kube.json import (
    Json,
    appended,
    dig,
    indexed_maps,
    integer,
    mapping,
    maps,
    replaced,
    strings,
    text,
)


def test_readers_answer_empty_for_missing_fields() -> None:
    obj = {"a": {"b": [1, {"c": "d"}, None]}, "n": 3, "t": True, "s": ["x", 1]}
    assert dig(obj, "a", "b", 1, "c") == "d"
    assert dig(obj, "a", "b", 9, "c") is None
    assert dig(obj, "n", "x") is None
    assert mapping(obj, "n") == {}
    assert maps(obj, "a", "b") == [{"c": "d"}]
    assert indexed_maps(obj, "a", "b") == [(1, {"c": "d"})]
    assert text(obj, "n") == ""
    assert (integer(obj, "n", default=7), integer(obj, "t", default=7)) == (3, 7)
    assert strings(obj, "s") == ["x"]


def test_editing_shares_what_did_not_change() -> None:
    pod: Json = {"metadata": {"labels": {}}, "spec": {"containers": [{"name": "a"}, {"name": "b"}]}}
    before = copy.deepcopy(pod)
    after = replaced(pod, ("spec", "containers", 1, "image"), "x")
    assert pod == before
    assert after["metadata"] is pod["metadata"]
    assert after["spec"]["containers"][0] is pod["spec"]["containers"][0]
    assert after["spec"]["containers"][1] == {"name": "b", "image": "x"}


def test_missing_parents_are_made() -> None:
    assert replaced({}, ("a", "b"), 1) == {"a": {"b": 1}}
    assert replaced({"a": None}, ("a", "b"), 1) == {"a": {"b": 1}}
    assert appended({}, ("a", "b"), 1, 2) == {"a": {"b": [1, 2]}}
    assert appended({"a": [0]}, ("a",), 1) == {"a": [0, 1]}
    assert replaced({"a": [0]}, ("a", 1), 5) == {"a": [0, 5]}
