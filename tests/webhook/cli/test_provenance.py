"""Who set a field: by the template, by the pod's own annotation, by what the policy adds, by default."""

import json
from typing import Any

import pytest

from policies.core.mode import Mode
from policies.core.reasons import Reason
from policies.kube.field_paths import without
from policies.kube.json import Json
from webhook.admission.changed import Changed
from webhook.cli.provenance import By, Field, fields_of, last_applied, manager_of, relevant_fields

START, LIVE = "spec.containers[a].startupProbe", "spec.containers[a].livenessProbe"
PROBE = {"httpGet": {"path": "/", "port": 1}}


def pod(**container: Any) -> Json:
    return {"metadata": {}, "spec": {"containers": [{"name": "a", **container}]}}


def reason(path: str, why: str = "now") -> tuple[Mode, Reason]:
    return Mode.ENFORCE, Reason(path, "standard-probes", why, "timeout")


def changed(*paths: str, why: str = "then", more: int = 0) -> Changed:
    return Changed(tuple(Reason(path, "standard-probes", why) for path in paths), more, "d1")


def judged(obj: Json, written: Json, *derived: tuple[Mode, Reason], **given: Any) -> dict[str, Field]:
    return {each.path: each for each in fields_of(obj, written, derived, list(relevant_fields(obj)), **given)}


def test_fields_of_the_template_are_its_authors() -> None:
    found = judged(pod(livenessProbe=PROBE), pod(livenessProbe=PROBE), changed=changed())
    assert {path: each.by for path, each in found.items()} == {LIVE: By.USER}


def test_fields_in_the_pods_annotation_are_ours_with_todays_reason() -> None:
    found = judged(pod(startupProbe=PROBE), pod(), reason(START, "then"), changed=changed(START))
    assert found[START].by is By.CHASSIS
    assert found[START].today is None
    assert found[START].reason == Reason(START, "standard-probes", "then", "timeout")
    other = judged(pod(startupProbe=PROBE), pod(), reason(START, "now"), changed=changed(START))
    assert other[START].reason == Reason(START, "standard-probes", "then", "timeout")
    assert other[START].today == "now"
    gone = judged(pod(startupProbe=PROBE), pod(), changed=changed(START))
    assert gone[START].today == ""


def test_the_annotation_wins_over_a_template_that_was_edited_since() -> None:
    found = judged(pod(startupProbe=PROBE), pod(startupProbe=PROBE), changed=changed(START))
    assert found[START].by is By.CHASSIS


def test_without_the_annotation_the_present_policy_decides() -> None:
    for said in (None, changed(more=3)):
        found = judged(pod(startupProbe=PROBE), pod(), reason(START), changed=said)
        assert found[START].by is By.CHASSIS
    found = judged(pod(startupProbe=PROBE), pod(), reason(START), changed=changed())
    assert found[START].by is By.OTHER, "it would have said so"


def test_a_field_that_is_not_enforced_would_be_added() -> None:
    warned = (Mode.WARN, reason(START)[1])
    assert judged(pod(), pod(), warned)[START].mode is Mode.WARN


def test_other_fields_are_defaults_or_another_managers() -> None:
    obj = pod(lifecycle={"preStop": {}})
    obj["spec"] |= {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 7,
        "tolerations": [
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
            {"key": "team", "operator": "Exists"},
        ],
        "initContainers": [{"name": "istio-proxy", "restartPolicy": "Always"}],
    }
    assert {path: each.by for path, each in judged(obj, pod(), changed=changed()).items()} == {
        "spec.containers[a].lifecycle": By.OTHER,
        "spec.initContainers[istio-proxy]": By.OTHER,
        "spec.initContainers[istio-proxy].restartPolicy": By.DEFAULT,
        "spec.restartPolicy": By.DEFAULT,
        "spec.terminationGracePeriodSeconds": By.OTHER,
        "spec.tolerations[node.kubernetes.io/not-ready]": By.DEFAULT,
        "spec.tolerations[team]": By.OTHER,
    }


def test_a_field_inside_or_around_an_added_one_is_listed_once() -> None:
    inner = "spec.containers[a].lifecycle.preStop"
    found = judged(pod(lifecycle={"preStop": {"sleep": {}}}), pod(), changed=changed(inner))
    assert list(found) == [inner]


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("spec.containers[a].x", {"spec": {"containers": [{"name": "a"}], "t": [{"key": "k"}]}}),
        ("spec.containers[a]", {"spec": {"containers": [], "t": [{"key": "k"}]}}),
        ("spec.t[k]", {"spec": {"containers": [{"name": "a", "x": 1}], "t": []}}),
        ("spec.none.x", {"spec": {"containers": [{"name": "a", "x": 1}], "t": [{"key": "k"}]}}),
    ],
)
def test_an_object_without_a_field(path: str, left: Json) -> None:
    obj: Json = {"spec": {"containers": [{"name": "a", "x": 1}], "t": [{"key": "k"}]}}
    assert without(obj, [path]) == left
    assert obj["spec"]["containers"] == [{"name": "a", "x": 1}], "the argument stays"


def managed(manager: str, time: str, fields: Json) -> Json:
    return {"manager": manager, "time": time, "fieldsV1": fields}


def test_the_last_manager_of_a_field() -> None:
    container: Json = {'k:{"name":"a"}': {".": {}, "f:livenessProbe": {"f:httpGet": {}}}}
    entries = [
        managed("edit", "2026-02-01T00:00:00Z", {"f:spec": {"f:containers": container}}),
        managed(
            "apply", "2026-01-01T00:00:00Z", {"f:spec": {"f:containers": container, "f:tolerations": {}}}
        ),
    ]
    obj = {"metadata": {"managedFields": entries}}
    assert manager_of(obj, LIVE) == "edit"
    assert manager_of(obj, "spec.tolerations[x].key") == "apply", "an atomic list has one manager"
    assert manager_of(obj, START) == ""
    assert manager_of({"metadata": {"managedFields": [{"fieldsV1": {"f:spec": {"k:[": {}}}}]}}, LIVE) == ""


def test_what_kubectl_apply_keeps() -> None:
    key = "kubectl.kubernetes.io/last-applied-configuration"
    assert last_applied({"metadata": {"annotations": {key: json.dumps({"a": 1})}}}) == {"a": 1}
    for kept in ("", "{", "[]", 7):
        assert last_applied({"metadata": {"annotations": {key: kept}}}) is None
