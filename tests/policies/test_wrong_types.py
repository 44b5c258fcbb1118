"""Values of another type than the API has are left where they are, wherever a mutator would write: law 3."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from policies.core.autoscalers import MAKERS
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json, appended, replaced
from webhook.admission.decision import Decision
from webhook.admission.engine import decide
from webhook.admission.json_patch import diff, steps_of
from webhook.admission.review import Review
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document, read

JUNK: tuple[Any, ...] = (True, "x", 7, 0.5, [], [None], {}, "")
CONFIG = load({})
Step = tuple[str, ...]


def put(obj: Json, steps: Step, value: Any) -> Json | None:
    """The object with a value at the steps; None where the step before the last does not exist."""
    changed = copy.deepcopy(obj)
    node: Any = changed
    for step in steps[:-1]:
        node = (
            node[int(step)] if isinstance(node, list) else node.get(step) if isinstance(node, dict) else None
        )
    match node:
        case dict():
            node[steps[-1]] = value
        case list() if int(steps[-1]) < len(node):
            node[int(steps[-1])] = value
        case _:
            return None
    return changed


def decided(document: Document, obj: Json, cluster: ManifestCluster) -> Decision:
    return decide(Review(Document(document.source, document.index, obj).request(), CONFIG, cluster))


def places() -> Iterator[tuple[str, Document, ManifestCluster, Step]]:
    """Every place at which a mutator writes in one of the cases, and every place above it, each once."""
    seen: set[tuple[str, Step]] = set()
    for path in sorted(Path(__file__).parent.rglob("input.yaml")):
        documents = read([str(path)], lenient=True)
        cluster = ManifestCluster([document.obj for document in documents])
        for document in documents:
            for change in decided(document, document.obj, cluster).changes:
                for operation in change.patch:
                    steps = tuple(steps_of(operation["path"]))
                    if change.template:
                        continue
                    for length in range(1, len(steps) + 1):
                        place = steps[:length]
                        known = change.mutator, tuple("*" if step.isdigit() else step for step in place)
                        if known not in seen:
                            seen.add(known)
                            yield f"{change.mutator}:{'.'.join(place)}", document, cluster, place


def test_no_value_of_another_type_is_overwritten() -> None:
    """One test, since to find the places takes longer than to try them."""
    policies = []
    for name, document, cluster, steps in places():
        policies.append(name.partition(":")[0])
        for junk in JUNK:
            obj = put(document.obj, steps, junk)
            if obj is None:
                continue
            decision = decided(document, obj, cluster)
            assert not decision.crashes, (name, junk)
            for operation in diff(obj, decision.object):
                if operation["op"] == "add":
                    continue
                at = steps_of(operation["path"])
                assert operation["op"] == "replace", (name, junk, operation)
                assert not is_above(at, steps), (name, junk, operation)
    assert set(policies) >= {
        *("standard-probes", "model-puller", "gpu-affinity"),
        *("job-retries", "disruption-guard"),
    }
    assert len(policies) > 30


def is_above(one: list[str], other: Step) -> bool:
    """Whether the written field replaces the junk value, or its parent."""
    return tuple(one) == other[: len(one)]


@pytest.mark.parametrize("junk", JUNK)
def test_the_editing_functions_leave_values_of_another_type(junk: Any) -> None:
    if not isinstance(junk, dict):
        obj = {"metadata": junk}
        assert replaced(obj, ("metadata", "annotations", "a"), "b") is obj
        assert replaced({"spec": junk}, ("spec",), {"a": 1}) == {"spec": junk}
    if not isinstance(junk, list):
        obj = {"spec": {"volumes": junk}}
        assert appended(obj, ("spec", "volumes"), {"name": "a"}) is obj
        assert replaced(obj, ("spec", "volumes", 0), {"name": "a"}) is obj
    if not isinstance(junk, int | float) or junk is True:
        assert replaced({"n": junk}, ("n",), 5) == {"n": junk}


def test_null_is_no_value() -> None:
    assert replaced({"metadata": None}, ("metadata", "a"), 1) == {"metadata": {"a": 1}}
    assert appended({"volumes": None}, ("volumes",), 1) == {"volumes": [1]}
    assert replaced({"n": 1}, ("n",), 2.5) == {"n": 2.5}


@pytest.mark.parametrize("kind", MAKERS, ids=str)
@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_autoscalers_of_wrong_types_make_no_rule_fail(kind: GroupKind, junk: Any) -> None:
    """Such as AIBrix's: their types are known, so the review says once that they can't be read."""
    obj = {
        "apiVersion": f"{kind.group}/v1alpha1",
        "kind": kind.kind,
        "metadata": {"name": "llm"},
        "spec": {"scaleTargetRef": {"name": junk}},
    }
    cluster = ManifestCluster([obj], whole=True)
    assert decided(Document("case", 0, obj), obj, cluster).crashes == ()
