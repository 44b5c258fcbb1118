"""No rule raises for any content of an object: files reach the rules that no API server has validated."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.core.contracts import Rule
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.target import Target
from policies.core.workloads import workloads_by_kind
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json
from tests.policies.test_laws import places
from webhook.admission.bounds import allowance, bounded
from webhook.config.load import rules
from webhook.manifests import files

CASES = Path(__file__).parent
KINDS = workloads_by_kind()
RULES = tuple(rules().values())
JUNK: list[Any] = [
    *(None, True, 0, -1, 2**70, 0.5, "", "x", "100%", "$(A)", "\ue000"),
    *([], [[]], [None], {}, {"a": {}}),
]


def spoiled(obj: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """The object with another value at the path; the rest is shared, not copied."""
    if not path:
        return value
    head, *rest = path
    copied = obj.copy()
    copied[head] = spoiled(obj[head], tuple(rest), value)
    return copied


def judged(obj: Json, by: Iterable[Rule] = RULES) -> list[Finding]:
    """The findings; a value of a wrong type leaves the object undecided before any rule."""
    kind = kind_of(obj)
    judging = [rule for rule in by if rule.kinds is None or kind in rule.kinds]
    if not judging:
        return []
    bounds = bounded(obj, KINDS, allowance())
    if bounds.left_out:
        return []
    target = Target(obj, kind, bounds.templates)
    return [finding for rule in judging for finding in rule.check(target, Facts())]


BAD = sorted(CASES.glob("*/rules/*/bad-*.yaml"))


@cache
def bad(path: Path) -> Json:
    return next(iter(files.read([str(path)]))).obj


def test_every_field_may_be_missing() -> None:
    """Its rule meets each case without each of its fields; the others meet each field of a kind once."""
    met = set()
    for file in BAD:
        obj, own = bad(file), [rule for rule in RULES if rule.id == file.parent.name]
        for path in places(obj.get("spec", {}), ("spec",))[1:]:
            field = kind_of(obj), tuple(step for step in path if isinstance(step, str))
            found = judged(spoiled(obj, path, None), own if field in met else RULES)
            met.add(field)
            assert all(isinstance(finding, Finding) for finding in found), (file, path)


@settings(max_examples=150)
@given(data=st.data())
def test_any_field_may_hold_anything(data: st.DataObject) -> None:
    obj = bad(data.draw(st.sampled_from(BAD)))
    for _ in range(data.draw(st.integers(1, 3))):
        paths = [path for path in places(obj) if path and path[0] == "spec"]
        if paths:
            obj = spoiled(obj, data.draw(st.sampled_from(paths)), data.draw(st.sampled_from(JUNK)))
    assert all(isinstance(finding, Finding) for finding in judged(obj))
