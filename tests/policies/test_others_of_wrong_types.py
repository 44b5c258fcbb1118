"""Another object with a value of the wrong type ends no rule: its own review says what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from policies.core.annotations import POLICY_LABEL
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json, replaced
from policies.kube.metadata import labels_of
from tests.policies.test_robustness import spoiled
from tests.policies.test_rules import Case, cases, findings
from tests.tables import table
from webhook.config.load import rules

DEPTH = 4
"""Of a value in its object; the types of deeper ones are read by the same models."""


def paths(obj: Json, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of the values in an object."""
    inside = obj.items() if isinstance(obj, dict) else enumerate(obj) if isinstance(obj, list) else ()
    for key, value in inside:
        path = (*above, key)
        if path[0] not in ("apiVersion", "kind"):
            yield path
        if len(path) < DEPTH:
            yield from paths(value, path)


def with_wrong(obj: Json, path: tuple[str | int, ...]) -> Json:
    """A copy with a value of another type at a path."""
    inner: Any = obj
    for step in path:
        inner = inner[step]
    made: Json = spoiled(obj, path, "a" if isinstance(inner, dict | list) else {"a": "b"})
    return made


@table("rule_id", rules())
def test_no_rule_raises(rule_id: str) -> None:
    rule = rules()[rule_id]
    tried = set()  # the cases of a rule have the same fields of the same kinds
    for file in cases("bad", rule):
        obj, *others = Case.read(file).objects
        if rule_id != "policy-config-invalid":  # the first other ConfigMap of a case is its policy
            others.append(replaced(obj, ("metadata", "name"), "another"))
        for number, other in enumerate(others):
            if labels_of(other).get(POLICY_LABEL):
                continue  # the policy of the case
            for path in paths(other):
                place = kind_of(obj), kind_of(other), path
                if place in tried:
                    continue
                tried.add(place)
                changed = [*others[:number], with_wrong(other, path), *others[number + 1 :]]
                target, facts = Case((obj, *changed), frozenset()).situation()
                findings(rule, target, facts)
