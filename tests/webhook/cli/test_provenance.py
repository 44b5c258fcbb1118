"""Who set a field: by the template, by the pod's own annotation, by what the policy adds, by default."""

from typing import Any

import pytest

from policies.core.finding import Mode
from policies.core.reasons import Reason
from policies.kube.json import Json
from webhook.admission.changed_annotation import Changed
from webhook.cli.provenance import By, Field, fields_of, manager_of, relevant_fields

START, LIVE = "spec.containers[a].startupProbe", "spec.containers[a].livenessProbe"


def pod(**container: Any) -> Json:
    return {"metadata": {}, "spec": {"containers": [{"name": "a", **container}]}}


def reason(path: str, why: str = "now") -> tuple[Mode, Reason]:
    return Mode.ENFORCE, Reason(path, "standard-probes", why, "timeout")


def changed(*paths: str, why: str = "then", more: int = 0) -> Changed:
    return Changed(tuple(Reason(path, "standard-probes", why) for path in paths), more, "d1")


def fields(obj: Json, written: Json, *derived: tuple[Mode, Reason], **given: Any) -> dict[str, Field]:
    return {each.path: each for each in fields_of(obj, written, derived, list(relevant_fields(obj)), **given)}


@pytest.mark.parametrize(("value", "by"), [("File", By.MISSING), ("FallbackToLogsOnError", By.CHASSIS)])
def test_a_default_that_a_policy_replaces_is_nobodys(value: str, by: By) -> None:
    """The template has the API server's default; the author wrote nothing."""
    path = "spec.containers[a].terminationMessagePolicy"
    running, template = pod(terminationMessagePolicy=value), pod(terminationMessagePolicy="File")
    assert fields(running, template, reason(path), manifest={})[path].by is by
    assert fields(running, template, reason(path), manifest=template)[path].by is By.USER


def test_a_field_inside_or_around_an_added_one_is_listed_once() -> None:
    inner = "spec.containers[a].lifecycle.preStop"
    found = fields(pod(lifecycle={"preStop": {"sleep": {}}}), pod(), changed=changed(inner))
    assert list(found) == [inner]


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
