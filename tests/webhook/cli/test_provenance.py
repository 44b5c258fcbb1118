"""Who set a field: by the template, by the pod's own annotation, by what the policy adds, by default."""

import json
from typing import Any

import pytest

from policies.core.finding import Mode
from policies.core.reasons import Reason
from policies.kube.field_paths import without
from policies.kube.json import Json
from policies.kube.metadata import last_applied
from webhook.admission.changed_annotation import Changed
from webhook.cli.provenance import By, Field, fields_of, manager_of, relevant_fields

START, LIVE = "spec.containers[a].startupProbe", "spec.containers[a].livenessProbe"
PROBE = {"httpGet": {"path": "/", "port": 1}}


def pod(**container: Any) -> Json:
    return {"metadata": {}, "spec": {"containers": [{"name": "a", **container}]}}


def reason(path: str, why: str = "now") -> tuple[Mode, Reason]:
    return Mode.ENFORCE, Reason(path, "standard-probes", why, "timeout")


def changed(*paths: str, why: str = "then", more: int = 0) -> Changed:
    return Changed(tuple(Reason(path, "standard-probes", why) for path in paths), more, "d1")


def fields(obj: Json, written: Json, *derived: tuple[Mode, Reason], **given: Any) -> dict[str, Field]:
    return {each.path: each for each in fields_of(obj, written, derived, list(relevant_fields(obj)), **given)}


@pytest.mark.parametrize(
    ("written", "derived", "annotation", "by"),
    [
        (pod(startupProbe=PROBE), [], changed(), By.USER),
        (pod(startupProbe=PROBE), [], changed(START), By.CHASSIS),
        (pod(), [reason(START)], changed(START), By.CHASSIS),
        (pod(), [reason(START)], changed(more=3), By.CHASSIS),
        (pod(), [reason(START)], changed(), By.OTHER),
        (pod(), [reason(START)], None, By.CHASSIS),
    ],
    ids=["template", "edited template", "annotation", "long annotation", "other annotation", "none"],
)
def test_who_set_a_field(
    written: Json, derived: list[tuple[Mode, Reason]], annotation: Changed | None, by: By
) -> None:
    found = fields(pod(startupProbe=PROBE), written, *derived, changed=annotation)
    assert {path: each.by for path, each in found.items()} == {START: by}


def test_without_a_manifest_the_author_is_unknown() -> None:
    found = fields(pod(startupProbe=PROBE), pod(startupProbe=PROBE), manifest={}, recorded=False)
    assert found[START].by is By.UNRECORDED


@pytest.mark.parametrize(("value", "by"), [("File", By.MISSING), ("FallbackToLogsOnError", By.CHASSIS)])
def test_a_default_that_a_policy_replaces_is_nobodys(value: str, by: By) -> None:
    """The template has the API server's default; the author wrote nothing."""
    path = "spec.containers[a].terminationMessagePolicy"
    running, template = pod(terminationMessagePolicy=value), pod(terminationMessagePolicy="File")
    assert fields(running, template, reason(path), manifest={})[path].by is by
    assert fields(running, template, reason(path), manifest=template)[path].by is By.USER


@pytest.mark.parametrize(
    ("derived", "today"), [([reason(START, "then")], None), ([reason(START, "now")], "now"), ([], "")]
)
def test_the_present_reason_is_shown_if_it_differs(
    derived: list[tuple[Mode, Reason]], today: str | None
) -> None:
    found = fields(pod(startupProbe=PROBE), pod(), *derived, changed=changed(START))[START]
    assert found.today == today
    setting = "timeout" if derived else ""
    assert found.reason == Reason(START, "standard-probes", "then", setting)


def test_a_field_that_is_not_enforced_would_be_added() -> None:
    warned = (Mode.WARN, reason(START)[1])
    assert fields(pod(), pod(), warned)[START].mode is Mode.WARN


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
    assert {path: each.by for path, each in fields(obj, pod(), changed=changed()).items()} == {
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
    found = fields(pod(lifecycle={"preStop": {"sleep": {}}}), pod(), changed=changed(inner))
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


def managed(manager: str, time: str, owned: Json) -> Json:
    return {"manager": manager, "time": time, "fieldsV1": owned}


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
