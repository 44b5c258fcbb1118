"""The laws that hold for every mutating policy and any input.

Real workloads are damaged at random places; still no policy may raise, overwrite or drop what the
user wrote, edit its argument, or find something to do in a second pass.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.core import registry
from policies.core.facts import Facts
from policies.core.pod_templates import pod_templates
from policies.core.workloads import workloads_by_kind
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json, replaced
from policies.kube.yaml_text import load_all
from webhook.admission.bounds import allowance, bounded
from webhook.admission.json_patch import same
from webhook.cli.output.yaml import dump

TABLE = workloads_by_kind()

SEEDS: tuple[Json, ...] = tuple(load_all(Path(__file__).with_name("laws.yaml").read_text()))
JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, -1, 10**30, 1.5, "", "x", "$(A)", [], {}, [None], {"name": None}, [[]]]
)

MENDED = {
    ("podReplacementPolicy",): "it can't be told from the API server's default",
    ("ttlSecondsAfterFinished",): "raising it is what job-retries is for",
    ("failedJobsHistoryLimit",): "raising it is what job-retries is for",
    ("backoffLimit",): "raised from 0 where the Job would else die on eviction",
}
"""Existing fields that a policy may change, each with the reason."""


DEFAULTS = [("terminationMessagePolicy", "File")]
"""Container fields that a policy may change if they have the API server's default: the object does not show
whether a person or the API server set them."""


def places(value: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, item in inner for place in places(item, (*at, key)))]


@st.composite
def damaged(draw: st.DrawFn) -> Json:
    obj = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from([place for place in places(obj) if len(place) > 1]))
        obj = replaced(obj, path, draw(JUNK))
    return obj


def lost(before: Any, after: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Paths whose value the user wrote and that is no longer there."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            place
            for key, value in before.items()
            if value is not None and (key, value) not in DEFAULTS
            for place in (lost(value, after[key], (*at, key)) if key in after else [(*at, key)])
        ]
    if isinstance(before, list) and isinstance(after, list):
        if len(after) < len(before):
            return [at]
        rest = iter(after)
        # In order, but others may be between: containers and volumes are put in front, too.
        kept = [any(_is_same_element(item, other) for other in rest) for item in before]
        return [(*at, n) for n, found in enumerate(kept) if not found]
    return [] if same(before, after) else [at]


def _is_same_element(before: Any, after: Any) -> bool:
    return not lost(before, after) and (
        not isinstance(before, dict) or before.get("name") == (after or {}).get("name")
    )


def reaches_policies(obj: Json) -> bool:
    """Whether a review passes the object to policies: a value of a wrong type leaves it undecided before."""
    return not bounded(obj, TABLE, allowance()).left_out


@pytest.mark.parametrize("policy_id", sorted(n for n, p in registry.mutators().items() if p.mutate))
@given(data=st.data())
@settings(max_examples=60)
def test_a_policy_keeps_the_laws(policy_id: str, data: st.DataObject) -> None:
    policy = registry.mutators()[policy_id]
    assert policy.mutate is not None
    obj = data.draw(damaged())
    candidates = [obj, *(template.pod for template in pod_templates(obj, TABLE))]
    for candidate in candidates:
        if kind_of(candidate) not in policy.kinds or not reaches_policies(candidate):
            continue
        before = copy.deepcopy(candidate)
        after = policy.mutate(candidate, policy.settings(), Facts("ml"))
        assert same(candidate, before), "the argument was edited"
        dropped = [place for place in lost(before, after) if place[-1:] not in MENDED]
        assert not dropped, f"{dropped} were overwritten or dropped:\n{dump(before)}\n{dump(after)}"
        assert same(policy.mutate(after, policy.settings(), Facts("ml")), after), (
            "a second pass found something to do"
        )
        if policy.advise:
            list(policy.advise(after, policy.settings(), Facts("ml")))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, []),
        ({"a": None}, {}, []),
        ({"a": 1}, {}, [("a",)]),
        ({"a": 1}, {"a": True}, [("a",)]),
        ([{"name": "x"}], [{"name": "y"}, {"name": "x", "z": 1}], []),
        ([{"name": "x"}, {"name": "y"}], [{"name": "y"}, {"name": "x"}], [(1,)]),
        ({"c": [{"name": "x", "v": 1}]}, {"c": [{"name": "x", "v": 2}]}, [("c", 0)]),
    ],
)
def test_a_lost_field_is_noticed(before: Any, after: Any, expected: list[tuple[Any, ...]]) -> None:
    assert lost(before, after) == expected
