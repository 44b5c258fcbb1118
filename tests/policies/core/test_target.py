"""Every pod template of every kind, and putting one back into its object."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.target import pod_templates, with_template
from policies.core.workloads import known_workloads
from policies.kube.group_kinds import GroupKind
from policies.kube.json import (
    Json,
    dig,
    replaced,
)
from policies.kube.metadata import controller

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
def test_kinds_without_a_template_give_none(kind: str) -> None:
    assert pod_templates({"apiVersion": "apps/v1", "kind": kind, "spec": {"template": None}}, TABLE) == ()


# --- editing -------------------------------------------------------------------------------------


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
