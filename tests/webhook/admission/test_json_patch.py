"""The diff against its oracle: the jsonpatch library, applied strictly."""

import copy
from typing import Any
from unittest.mock import patch

import jsonpatch
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import webhook.admission.json_patch
from webhook.admission.json_patch import diff, same

KEYS = st.sampled_from(["name", "a", "b", "~", "/", "", "-", "~1", "a/b", "0"])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from([0.0, 1.0, 1.5, -0.0]), st.text(max_size=3)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=20,
)


def applied(original: Any, operations: list[dict[str, Any]]) -> Any:
    return jsonpatch.JsonPatch(operations).apply(copy.deepcopy(original))


@given(JSON, JSON)
@example([{"name": "a"}], [{"name": "b"}, {"name": "a", "x": 1}])
@example([{"name": "a"}, {"name": "b"}], [{"name": "b"}, {"name": "a"}])
@example([1, True, 1.0], [True, 1, 1])
@example({"~1": 1, "/": 2, "": 3}, {"~1": 2, "/": 3, "-": 4})
def test_round_trip(original: Any, final: Any) -> None:
    before = copy.deepcopy(original)
    operations = diff(original, final)
    assert same(applied(original, operations), final)
    assert same(original, before), "the diff must not edit its arguments"


@given(JSON)
def test_equal_objects_need_no_patch(value: Any) -> None:
    assert diff(value, copy.deepcopy(value)) == []


@given(JSON, JSON)
def test_a_patch_has_nothing_to_add_to_its_own_result(original: Any, final: Any) -> None:
    assert diff(applied(original, diff(original, final)), final) == []


@pytest.mark.parametrize(
    ("original", "final", "expected"),
    [
        ({"a": True}, {"a": 1}, [{"op": "replace", "path": "/a", "value": 1}]),
        ({"a": 1}, {"a": 1.0}, [{"op": "replace", "path": "/a", "value": 1.0}]),
        ({"a": None}, {}, [{"op": "remove", "path": "/a"}]),
        ({}, {"a": None}, [{"op": "add", "path": "/a", "value": None}]),
        ({}, {"a": {"b": {"c": 1}}}, [{"op": "add", "path": "/a", "value": {"b": {"c": 1}}}]),
        ({"a/b": {"~": 1}}, {"a/b": {"~": 2}}, [{"op": "replace", "path": "/a~1b/~0", "value": 2}]),
        ([], [1, 2], [{"op": "add", "path": "/0", "value": 1}, {"op": "add", "path": "/1", "value": 2}]),
        ([2, 3], [1, 2, 3], [{"op": "add", "path": "/0", "value": 1}]),
        ([1, 2, 3], [1, 3], [{"op": "remove", "path": "/1"}]),
        (
            [{"name": "main", "image": "x"}],
            [{"name": "puller"}, {"name": "main", "image": "x", "tty": True}],
            [
                {"op": "add", "path": "/0", "value": {"name": "puller"}},
                {"op": "add", "path": "/1/tty", "value": True},
            ],
        ),
    ],
)
def test_patches_are_minimal(original: Any, final: Any, expected: list[dict[str, Any]]) -> None:
    assert diff(original, final) == expected


NAMED = st.lists(
    st.fixed_dictionaries({}, optional={"name": st.sampled_from(["a", "b", "c", 1, True]), "x": JSON})
    | SCALARS,
    max_size=5,
)


@given(NAMED, NAMED)
@example([{"name": "a", "x": 1}], [{"name": "b", "x": 1}])
@example([{"name": "a"}, {"name": "a", "x": 1}], [{"name": "a", "x": 2}, {"name": "a"}])
def test_lists_whose_elements_correspond_need_no_alignment(original: list[Any], final: list[Any]) -> None:
    quick = diff(original, final)
    with patch.object(webhook.admission.json_patch, "_correspond", lambda a, b: False):
        assert quick == diff(original, final)


def test_shared_subtrees_are_not_walked() -> None:
    class Untouchable(dict[str, Any]):
        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared by value")

        __hash__ = None

        def items(self) -> Any:
            raise AssertionError("walked")

    shared = Untouchable(x=1)
    assert diff({"a": shared, "b": 1}, {"a": shared, "b": 2}) == [{"op": "replace", "path": "/b", "value": 2}]
