"""Reading pod templates out of any kind, and copy-on-write editing."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.target import completes, pod_templates, with_template
from policies.core.workloads import known_workloads
from policies.kube.field_paths import field_path
from policies.kube.group_kinds import GroupKind, kind_of
from policies.kube.json import (
    Json,
    appended,
    defaulted,
    dig,
    indexed_maps,
    integer,
    mapping,
    maps,
    replaced,
    strings,
    text,
)
from policies.kube.metadata import controller, has_room
from policies.kube.pods import Role, containers, edited, is_ray_node
from policies.kube.selectors import matches

TABLE = {workload.gk: workload for workload in known_workloads()}
SPEC = {"containers": [{"name": "main"}]}


def made(path: str, value: Any, api: str, kind: str) -> Json:
    obj: Json = {"apiVersion": api, "kind": kind, "metadata": {"name": "x", "labels": {"own": "yes"}}}
    return replaced(obj, [int(step) if step.isdigit() else step for step in path.split(".")], value)


@pytest.mark.parametrize(
    ("api", "kind", "at", "path", "owner", "completing"),
    [
        ("apps/v1", "Deployment", "spec.template", "spec.template", "ReplicaSet", False),
        ("apps/v1", "ReplicaSet", "spec.template", "spec.template", "ReplicaSet", False),
        ("v1", "ReplicationController", "spec.template", "spec.template", "ReplicationController", False),
        ("apps/v1", "StatefulSet", "spec.template", "spec.template", "StatefulSet", False),
        ("apps/v1", "DaemonSet", "spec.template", "spec.template", "DaemonSet", False),
        ("batch/v1", "Job", "spec.template", "spec.template", "Job", True),
        (
            "batch/v1",
            "CronJob",
            "spec.jobTemplate.spec.template",
            "spec.jobTemplate.spec.template",
            "Job",
            True,
        ),
        (
            "ray.io/v1",
            "RayCluster",
            "spec.headGroupSpec.template",
            "spec.headGroupSpec.template",
            "RayCluster",
            False,
        ),
        (
            "ray.io/v1",
            "RayCluster",
            "spec.workerGroupSpecs.0.template",
            "spec.workerGroupSpecs[0].template",
            "RayCluster",
            False,
        ),
        (
            "ray.io/v1",
            "RayJob",
            "spec.rayClusterSpec.headGroupSpec.template",
            "spec.rayClusterSpec.headGroupSpec.template",
            "RayCluster",
            False,
        ),
        (
            "ray.io/v1alpha1",
            "RayService",
            "spec.rayClusterConfig.workerGroupSpecs.0.template",
            "spec.rayClusterConfig.workerGroupSpecs[0].template",
            "RayCluster",
            False,
        ),
        (
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            "spec.replicatedJobs.0.template.spec.template",
            "spec.replicatedJobs[0].template.spec.template",
            "Job",
            True,
        ),
        (
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            "spec.leaderWorkerTemplate.workerTemplate",
            "spec.leaderWorkerTemplate.workerTemplate",
            "StatefulSet",
            False,
        ),
        (
            "kubeflow.org/v1",
            "PyTorchJob",
            "spec.pytorchReplicaSpecs.Worker.template",
            "spec.pytorchReplicaSpecs.Worker.template",
            "PyTorchJob",
            True,
        ),
    ],
)
def test_every_kind_gives_its_templates(
    api: str, kind: str, at: str, path: str, owner: str, completing: bool
) -> None:
    obj = made(at, {"metadata": {"labels": {"a": "b"}}, "spec": SPEC}, api, kind)
    (template,) = pod_templates(obj, TABLE)
    assert (template.path, template.spec_path, template.metadata_path) == (
        path,
        f"{path}.spec",
        f"{path}.metadata",
    )
    assert template.spec is SPEC
    assert template.pod["metadata"]["labels"] == {"a": "b"}
    assert dig(controller(template.pod), "kind") == owner
    assert template.completes is completing
    assert template.is_ray is (owner == "RayCluster")
    assert with_template(obj, template, template.pod) == obj
    changed = with_template(obj, template, replaced(template.pod, ("spec", "hostname"), "h"))
    assert dig(changed, *[int(s) if s.isdigit() else s for s in at.split(".")], "spec", "hostname") == "h"


def test_a_pod_is_its_own_template() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": SPEC}
    (template,) = pod_templates(pod, TABLE)
    assert template.pod is pod
    assert (template.path, template.spec_path, template.metadata_path) == ("", "spec", "metadata")
    (container,) = template.containers()
    assert template.at(container, "image") == "spec.containers[0].image"


def test_inline_pod_specs_carry_the_objects_metadata() -> None:
    obj = made("spec.predictor", SPEC, "serving.kserve.io/v1beta1", "InferenceService")
    (template,) = pod_templates(obj, TABLE)
    assert (template.path, template.spec_path, template.metadata_path) == (
        "spec.predictor",
        "spec.predictor",
        "metadata",
    )
    assert template.pod["metadata"]["labels"] == {"own": "yes"}
    changed = with_template(obj, template, replaced(template.pod, ("spec", "hostname"), "h"))
    assert changed["spec"]["predictor"]["hostname"] == "h"


def test_a_model_is_the_container_of_a_pod_that_a_runtime_completes() -> None:
    predictor = {"model": {"image": "m"}, "nodeSelector": {"a": "b"}, "initContainers": [{"name": "i"}]}
    obj = made("spec.predictor", predictor, "serving.kserve.io/v1beta1", "InferenceService")
    whole, template = pod_templates(obj, TABLE)
    assert (whole.container_path, template.container_path) == ("", "spec.predictor.model")
    assert (template.spec_path, template.metadata_path) == ("spec.predictor", "metadata")
    assert template.spec["nodeSelector"] == {"a": "b"}
    (container,) = template.containers()
    assert (container.name, container.image) == ("kserve-container", "m")
    assert template.at(container, "image") == "spec.predictor.model.image"


@pytest.mark.parametrize("kind", ["Service", "Deployment"])
def test_what_has_no_template_gives_none(kind: str) -> None:
    assert pod_templates({"apiVersion": "apps/v1", "kind": kind, "spec": {"template": None}}, TABLE) == ()


def test_containers_and_their_roles() -> None:
    pod = {
        "spec": {
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}, None],
            "containers": [None, {"name": "m"}],
        }
    }
    assert [(c.name, c.role, c.list, c.index) for c in containers(pod)] == [
        ("m", Role.MAIN, "containers", 1),
        ("i", Role.INIT, "initContainers", 0),
        ("s", Role.SIDECAR, "initContainers", 1),
    ]
    assert [c.name for c in containers(pod, Role.SIDECAR)] == ["s"]


def test_readers_answer_empty_for_what_is_not_there() -> None:
    obj = {"a": {"b": [1, {"c": "d"}, None]}, "n": 3, "t": True, "s": ["x", 1]}
    assert dig(obj, "a", "b", 1, "c") == "d"
    assert dig(obj, "a", "b", 9, "c") is None
    assert dig(obj, "n", "x") is None
    assert mapping(obj, "n") == {}
    assert maps(obj, "a", "b") == [{"c": "d"}]
    assert indexed_maps(obj, "a", "b") == [(1, {"c": "d"})]
    assert text(obj, "n") == ""
    assert (integer(obj, "n", default=7), integer(obj, "t", default=7)) == (3, 7)
    assert strings(obj, "s") == ["x"]


def test_kinds() -> None:
    assert kind_of({"apiVersion": "apps/v1", "kind": "Deployment"}) == GroupKind("apps", "Deployment")
    assert kind_of({"apiVersion": "v1", "kind": "Pod"}) == GroupKind("", "Pod")
    assert kind_of({}) == GroupKind("", "")
    assert (str(GroupKind("apps", "X")), str(GroupKind("", "Y"))) == ("X.apps", "Y")


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({}, True),
        (None, False),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "2"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, False),
        ({"matchExpressions": [{"key": "z", "operator": "NotIn", "values": ["1"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "a", "operator": "Like"}]}, False),
    ],
)
def test_label_selectors(selector: Any, expected: bool) -> None:
    assert matches(selector, {"a": "1"}) is expected


def test_who_completes_and_who_is_ray() -> None:
    assert completes({"spec": {"restartPolicy": "Never"}})
    assert not completes({"spec": {"restartPolicy": "Always"}})
    owner = {"kind": "RayCluster", "controller": True}
    assert is_ray_node({"metadata": {"ownerReferences": [owner]}})
    assert is_ray_node({"metadata": {"labels": {"ray.io/is-ray-node": "yes"}}})
    cleanup = {"metadata": {"ownerReferences": [owner], "labels": {"ray.io/node-type": "redis-cleanup"}}}
    assert not is_ray_node(cleanup)
    assert not is_ray_node({"metadata": {"ownerReferences": [owner | {"controller": False}]}})


def test_field_paths() -> None:
    assert field_path(["spec", "containers", 0, "env"]) == "spec.containers[0].env"
    assert field_path(["metadata", "labels", "a.b/c"]) == "metadata.labels[a.b/c]"


# --- editing -------------------------------------------------------------------------------------


def test_editing_shares_what_did_not_change() -> None:
    pod: Json = {"metadata": {"labels": {}}, "spec": {"containers": [{"name": "a"}, {"name": "b"}]}}
    before = copy.deepcopy(pod)
    after = replaced(pod, ("spec", "containers", 1, "image"), "x")
    assert pod == before
    assert after["metadata"] is pod["metadata"]
    assert after["spec"]["containers"][0] is pod["spec"]["containers"][0]
    assert after["spec"]["containers"][1] == {"name": "b", "image": "x"}


def test_missing_parents_are_made() -> None:
    assert replaced({}, ("a", "b"), 1) == {"a": {"b": 1}}
    assert replaced({"a": None}, ("a", "b"), 1) == {"a": {"b": 1}}
    assert appended({}, ("a", "b"), 1, 2) == {"a": {"b": [1, 2]}}
    assert appended({"a": [0]}, ("a",), 1) == {"a": [0, 1]}
    assert replaced({"a": [0]}, ("a", 1), 5) == {"a": [0, 5]}


def test_what_the_user_wrote_stays() -> None:
    values: tuple[object, ...] = (0, "", False, [], {})
    for written in values:
        obj = {"a": {"b": written}}
        assert defaulted(obj, ("a", "b"), 1) is obj
    assert defaulted({"a": {"b": None}}, ("a", "b"), 1) == {"a": {"b": 1}}


def test_a_container_is_edited_in_its_pod() -> None:
    pod = {"spec": {"initContainers": [{"name": "a"}]}}
    (container,) = containers(pod)
    assert edited(pod, container, container.spec) is pod
    assert edited(pod, container, {"name": "z"}) == {"spec": {"initContainers": [{"name": "z"}]}}


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["spec", "template", "metadata", "containers", "workerGroupSpecs"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=15,
)


@given(st.sampled_from(sorted(TABLE, key=str)), JUNK, JUNK)
def test_no_shape_makes_reading_fail(kind: GroupKind, spec: object, metadata: object) -> None:
    obj = {"apiVersion": f"{kind.group}/v1", "kind": kind.kind, "spec": spec, "metadata": metadata}
    for template in pod_templates(obj, TABLE):
        list(template.containers())
        assert template.completes in (True, False)
        with_template(obj, template, template.pod)


def test_annotations_have_room_until_the_api_server_would_refuse_the_object() -> None:
    assert has_room({"k": "v" * (2**18 - 3)}, {"a": "b"})
    assert not has_room({"k": "v" * (2**18 - 2)}, {"a": "b"})
    assert not has_room({"k": "ü" * 2**17}, {})
    assert has_room({"k": "v" * (2**18 - 1)}, {"k": "w"}), "what is there stays, so nothing is added"
