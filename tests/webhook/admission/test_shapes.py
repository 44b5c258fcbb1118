"""Objects of unknown kinds: pods found by structure, other possible descriptions of pods, and structures that
are never found."""

from __future__ import annotations

from typing import Any

import pytest

from policies.kube.json import Json
from tests.manifests import manifest
from tests.policies.core.reviews import STRICT, coverage_of, decided
from webhook.admission import messages
from webhook.admission.coverage import Reading
from webhook.admission.engine import mutate
from webhook.admission.review import Review
from webhook.admission.shapes import MAX_FOUND, found_by_shape
from webhook.config.load import load
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document
from webhook.server.metrics import MAX_UNREAD_KINDS, Metrics

HAZARD: Json = {"httpGet": {"path": "/live", "port": 8080}, "failureThreshold": 1, "periodSeconds": 1}
POD: Json = {"containers": [{"name": "api", "image": "example.org/api:1", "livenessProbe": HAZARD}]}


def unknown(spec: Any, **more: Any) -> Json:
    return manifest("Odd", "x", spec, version="example.org/v1") | more


@pytest.mark.parametrize(
    ("spec", "path", "inside"),
    [
        (POD, "spec", ""),
        ({"template": {"spec": POD}}, "spec.template", ".spec"),
        (
            {"roles": [{"size": 2}, {"worker": {"metadata": {}, "spec": POD}}]},
            "spec.roles[1].worker",
            ".spec",
        ),
        ({"a.b/c": {"podSpec": POD}}, "spec[a.b/c].podSpec", ""),
    ],
)
def test_a_pod_is_found_by_its_structure_and_only_warned_about(spec: Json, path: str, inside: str) -> None:
    obj = unknown(spec)
    decision, coverage = decided(obj, config=STRICT), coverage_of(obj)
    assert (coverage.reading, coverage.by_shape) == (Reading.PARTLY, (path,))
    assert "found by shape" in coverage.sentence
    found = [result for result in decision.results if result.rule == "liveness-single-failure"]
    probe = f"{path}{inside}.containers[0].livenessProbe"
    assert [result.finding.path.startswith(probe) for result in found] == [True]
    assert all(result.by_shape for result in decision.results)
    assert decision.allowed, "nothing in an unknown kind is refused, not even under strict"
    assert decision.object is obj
    assert (decision.patch, decision.projected, decision.changes) == ((), None, ())


def test_nothing_is_changed_in_an_unknown_kind() -> None:
    obj = unknown({"template": {"spec": POD}})
    assert mutate(Review(Document("test", 0, obj).request(), STRICT, ManifestCluster([]))).object is obj


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"containers": []},
        {"containers": ["api"]},
        {"containers": [{"name": "api"}]},
        {"containers": [{"image": "a"}]},
        {"containers": {"api": {"name": "api", "image": "a"}}},
        {"containers": [{"name": "api", "image": {"repository": "a"}}]},
    ],
)
def test_another_structure_is_no_pod(spec: Json) -> None:
    coverage = coverage_of(unknown(spec))
    assert (coverage.reading, coverage.unknown) == (Reading.NOT, True)
    assert coverage.sentence.startswith("not reviewed: kind Odd of group example.org")


def test_status_and_metadata_are_not_searched() -> None:
    obj = unknown({}, status={"template": {"spec": POD}})
    obj["metadata"]["annotations"] = {"last-applied": "containers: [{image: a, name: b}]"}
    found = found_by_shape(obj)
    assert (found.templates, found.unread) == ((), ())


@pytest.mark.parametrize(
    ("spec", "path", "why"),
    [
        ({"manifest": "kind: Pod\nspec:\n  containers:\n  - image: a"}, "spec.manifest", "a string"),
        ({"patches": ['{"spec":{"containers":[{"image":"a"}]}}']}, "spec.patches[0]", "a string"),
        ({"templateRef": {"name": "other"}}, "spec.templateRef", "a reference"),
        ({"job": {"workloadRef": {"name": "other"}}}, "spec.job.workloadRef", "a reference"),
    ],
)
def test_pods_in_a_form_that_is_not_read_are_named(spec: Json, path: str, why: str) -> None:
    coverage = coverage_of(unknown(spec))
    assert coverage.reading is Reading.NOT
    assert [each.why.startswith(why) for each in coverage.unread if each.path == path] == [True]


def test_the_search_ends() -> None:
    many = found_by_shape(unknown({"pods": [POD] * 100}))
    assert len(many.templates) == MAX_FOUND
    assert any("only the first" in why for _, why in many.unread)
    deep: Any = POD
    for _ in range(100):
        deep = {"spec": deep}
    assert found_by_shape(unknown(deep)).templates == ()


def test_an_object_larger_than_a_review_is_named_as_not_reviewed() -> None:
    obj = unknown({"items": [{"name": f"n{number}", "value": "v"} for number in range(30_000)]})
    assert coverage_of(obj).reading is Reading.NOT
    assert decided(obj).allowed


def test_a_kind_that_the_policy_adds_is_known() -> None:
    text = "workloads: [{apiGroup: example.org, kind: Odd, templates: [spec.template]}]"
    config = load({"webhook.yaml": text}).with_profile("strict")
    obj = unknown({"template": {"spec": POD}})
    assert coverage_of(obj, config=config).reading is Reading.REVIEWED
    assert not any(result.by_shape for result in decided(obj, config=config).results)


def test_the_audit_log_has_the_unread_parts() -> None:
    obj = unknown({"size": 1})
    assert messages.audit_of(decided(obj)) == {"coverage": coverage_of(obj).sentence}
    assert "coverage" not in messages.audit_of(decided({"apiVersion": "v1", "kind": "Service"}))


def test_unread_parts_are_counted_by_kind_and_the_kinds_are_bounded() -> None:
    metrics = Metrics()
    for number in range(MAX_UNREAD_KINDS + 5):
        metrics.of_not_read(f"Odd{number}.example.org", "not reviewed").inc()
    text = metrics.render().decode()
    assert 'chassis_not_reviewed_total{kind="Odd0.example.org",reading="not reviewed"} 1.0' in text
    assert 'chassis_not_reviewed_total{kind="other",reading="not reviewed"} 5.0' in text


def test_a_port_of_an_unknown_kind_does_not_tell_that_it_serves() -> None:
    container: Json = {"name": "train", "image": "example.org/train:1", "ports": [{"containerPort": 9991}]}

    def gaps(container: Json) -> list[str]:
        results = decided(unknown({"replicas": {"spec": {"containers": [container]}}})).results
        return [each.rule for each in results if each.rule.endswith(("liveness-missing", "without-liveness"))]

    assert gaps(container) == []
    probe = {"httpGet": {"path": "/ready", "port": 9991}}
    assert gaps({**container, "readinessProbe": probe}) == ["readiness-without-liveness"]
    assert gaps({**container, "image": "qdrant/qdrant:v1.15.0", "command": ["vllm", "serve"]}) != []
