"""Values of a wrong type are found in one place, with their path."""

from __future__ import annotations

import pytest

from policies.kube.json import Json
from policies.kube.objects.kinds import TYPES
from policies.kube.objects.metadata import LabelSelector, Object
from policies.kube.objects.pods import Pod, Probe
from policies.kube.objects.reading import WrongTypeError, read, without_nulls
from policies.kube.objects.services import InferencePool
from policies.kube.objects.workloads import Deployment


@pytest.mark.parametrize(
    ("obj", "problem"),
    [
        ({"spec": {"replicas": "3"}}, "spec.replicas: expected int, got str"),
        ({"spec": {"replicas": True}}, "spec.replicas: expected int, got bool"),
        ({"spec": []}, "spec: expected object, got array"),
        ({"metadata": {"labels": {"a": "b", "n": 1}}}, "metadata.labels[n]: expected str, got int"),
        ({"metadata": {"labels": {"a.b/c": {}}}}, "metadata.labels[a.b/c]: expected str, got object"),
        (
            {"spec": {"template": {"spec": {"containers": [{}, {"env": [{"name": "A", "value": 1}]}]}}}},
            "spec.template.spec.containers[1].env[0].value: expected str, got int",
        ),
        (
            {"spec": {"template": {"spec": {"containers": [None]}}}},
            "spec.template.spec.containers[0]: expected object, got null",
        ),
        (
            {"spec": {"strategy": {"rollingUpdate": {"maxSurge": 0.5}}}},
            "spec.strategy.rollingUpdate.maxSurge: expected int | str, got float",
        ),
        (
            {"spec": {"template": {"spec": {"containers": [{"resources": {"limits": {"a": 1, "b": []}}}]}}}},
            "spec.template.spec.containers[0].resources.limits[b]: expected int | float | str, got array",
        ),
    ],
)
def test_a_wrong_type_is_named_with_its_path(obj: Json, problem: str) -> None:
    with pytest.raises(WrongTypeError) as found:
        read(obj, Deployment)
    assert str(found.value) == problem
    assert f"{found.value.path}: {found.value.problem}" == problem


@pytest.mark.parametrize(
    ("selector", "problem"),
    [
        ({"matchLabels": {"a": "b", "app": []}}, "[matchLabels][app]: expected str, got array"),
        ({"other": "a", "matchLabels": {"app": 1}}, "[matchLabels][app]: expected str, got int"),
        ({"app": []}, "[app]: expected str | object, got array"),
    ],
)
def test_a_wrong_type_in_a_map_of_maps_is_named_with_its_path(selector: Json, problem: str) -> None:
    with pytest.raises(WrongTypeError) as raised:
        read({"spec": {"selector": selector}}, InferencePool)
    assert str(raised.value) == f"spec.selector{problem}"


def test_null_is_absent() -> None:
    pod: Json = {
        "metadata": {"labels": None, "creationTimestamp": None},
        "spec": {"hostNetwork": None, "containers": [{"name": "a", "livenessProbe": None, "args": None}]},
        "status": None,
    }
    found = read(pod, Pod)
    assert found == read({"spec": {"containers": [{"name": "a"}]}}, Pod)
    with pytest.raises(WrongTypeError, match=r"^spec.hostname: expected str, got int$"):
        read({"metadata": None, "spec": {"hostname": 1}}, Pod)


def test_absence_and_emptiness_differ_where_rules_need_it() -> None:
    def selector(spec: Json) -> LabelSelector | None:
        return read({"spec": spec}, Deployment).spec.selector

    assert selector({}) is None
    assert selector({"selector": None}) is None
    assert selector({"selector": {}}) == LabelSelector()


def test_unknown_fields_are_left_out_and_json_stays() -> None:
    pod = {"spec": {"containers": [{"name": "a", "new": {"b": [None]}}], "newer": 1}, "other": None}
    before = {"spec": {"containers": [{"name": "a", "new": {"b": [None]}}], "newer": 1}, "other": None}
    assert read(pod, Pod).spec.containers[0].name == "a"
    assert pod == before


def test_nulls_leave_maps_only() -> None:
    assert without_nulls({"a": None, "b": [None, {"c": None, "d": [[None]]}]}) == {
        "b": [None, {"d": [[None]]}]
    }


def test_nesting_has_no_limit() -> None:
    deep: Json = {}
    for _ in range(5_000):
        deep = {"a": [deep]}
    assert read({"spec": {"unknown": deep, "nodeName": None}}, Pod) == Pod()


def test_an_empty_object_of_every_kind_can_be_read() -> None:
    for kind in TYPES.values():
        found = read({}, kind)
        assert found == read({"metadata": None, "spec": None, "status": None}, kind)
        assert not found.is_manifest


def test_any_number_is_an_integer_as_in_json() -> None:
    assert read({"spec": {"replicas": 2**70}}, Deployment).spec.replicas == 2**70


def test_the_defaults_of_a_probe_are_the_api_servers() -> None:
    zero = read({"periodSeconds": 0, "timeoutSeconds": 0, "failureThreshold": 0}, Probe)
    for probe in (Probe(), zero):
        assert (probe.period, probe.timeout, probe.failures, probe.initial_delay) == (10, 1, 3, 0)
    slow = Probe(period_seconds=5, failure_threshold=4, initial_delay_seconds=7)
    assert (slow.give_up, slow.startup_deadline) == (20, 27)


@pytest.mark.parametrize(
    ("selector", "labels", "expected"),
    [
        ({}, {"a": "b"}, True),
        ({"matchLabels": {"a": "b"}}, {"a": "b", "c": "d"}, True),
        ({"matchLabels": {"a": "b"}}, {"a": "x"}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}, {"a": "b"}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}, {"a": "b"}, False),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}, {}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {}, False),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, {}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Like"}]}, {"a": "b"}, False),
    ],
)
def test_selectors(selector: Json, labels: dict[str, str], expected: bool) -> None:
    assert read(selector, LabelSelector).matches(labels) is expected


def test_the_controller_of_an_object() -> None:
    owner: Json = {"kind": "B", "name": "b", "controller": True}
    owners = [{"kind": "A", "name": "a"}, owner]
    found = read({"metadata": {"ownerReferences": owners}}, Object).metadata.controller
    assert found is not None
    assert (found.kind, found.name) == ("B", "b")
    assert read({}, Object).metadata.controller is None


def test_a_negative_number_of_a_probe_counts_as_the_default() -> None:
    probe = Probe(initial_delay_seconds=-1, period_seconds=-1, timeout_seconds=0, failure_threshold=-3)
    assert (probe.startup_deadline, probe.timeout) == (30, 1)
