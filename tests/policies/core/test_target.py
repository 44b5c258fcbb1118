"""Every pod template of every kind, and putting one back into its object."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.pod_templates import pod_templates, with_template
from policies.core.target import PodTemplate
from policies.core.workloads import workloads_by_kind
from policies.kube.field_paths import value_at
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json, dig, replaced
from policies.kube.metadata import controller
from tests.tables import table

TABLE = workloads_by_kind()
SPEC = {"containers": [{"name": "main"}]}


def made(path: str, value: Any, api: str, kind: str) -> Json:
    obj: Json = {"apiVersion": api, "kind": kind, "metadata": {"name": "x", "labels": {"own": "yes"}}}
    return replaced(obj, [int(step) if step.isdigit() else step for step in path.split(".")], value)


@table(
    "line",
    [
        "apps/v1 Deployment spec.template ReplicaSet",
        "apps/v1 ReplicaSet spec.template ReplicaSet",
        "v1 ReplicationController spec.template ReplicationController",
        "apps/v1 StatefulSet spec.template StatefulSet",
        "apps/v1 DaemonSet spec.template DaemonSet",
        "batch/v1 Job spec.template Job completes",
        "batch/v1 CronJob spec.jobTemplate.spec.template Job completes",
        "ray.io/v1 RayCluster spec.headGroupSpec.template RayCluster",
        "ray.io/v1 RayCluster spec.workerGroupSpecs.0.template RayCluster",
        "ray.io/v1 RayJob spec.rayClusterSpec.headGroupSpec.template RayCluster",
        "ray.io/v1alpha1 RayService spec.rayClusterConfig.workerGroupSpecs.0.template RayCluster",
        "jobset.x-k8s.io/v1alpha2 JobSet spec.replicatedJobs.0.template.spec.template Job completes",
        "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet spec.leaderWorkerTemplate.workerTemplate StatefulSet",
        "kubeflow.org/v1 PyTorchJob spec.pytorchReplicaSpecs.Worker.template PyTorchJob completes",
    ],
)
def test_every_kind_gives_its_templates(line: str) -> None:
    api, kind, at, owner, *completes = line.split()
    obj = made(at, {"metadata": {"labels": {"a": "b"}}, "spec": SPEC}, api, kind)
    (template,) = pod_templates(obj, TABLE)
    path = at.replace(".0.", "[0].")
    assert paths_of(template) == (path, f"{path}.spec", f"{path}.metadata")
    assert template.spec is SPEC
    assert template.pod["metadata"]["labels"] == {"a": "b"}
    assert dig(controller(template.pod), "kind") == owner
    assert template.completes is bool(completes)
    assert template.is_ray is (owner == "RayCluster")
    assert with_template(obj, template, template.pod) == obj
    changed = with_template(obj, template, replaced(template.pod, ("spec", "hostname"), "h"))
    assert value_at(changed, f"{path}.spec.hostname") == "h"


def paths_of(template: PodTemplate) -> tuple[str, str, str]:
    return template.path, template.spec_path, template.metadata_path


def test_a_pod_is_its_own_template() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": SPEC}
    (template,) = pod_templates(pod, TABLE)
    assert template.pod is pod
    assert paths_of(template) == ("", "spec", "metadata")
    (container,) = template.containers()
    assert template.at(container, "image") == "spec.containers[0].image"


def test_inline_pod_specs_carry_the_objects_metadata() -> None:
    obj = made("spec.predictor", SPEC, "serving.kserve.io/v1beta1", "InferenceService")
    (template,) = pod_templates(obj, TABLE)
    assert paths_of(template) == ("spec.predictor", "spec.predictor", "metadata")
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


KEYS = st.sampled_from(["spec", "template", "metadata", "containers", "workerGroupSpecs"])
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=15,
)


@given(st.sampled_from(sorted(TABLE, key=str)), JUNK, JUNK)
def test_no_shape_makes_reading_fail(kind: GroupKind, spec: object, metadata: object) -> None:
    obj = {"apiVersion": f"{kind.group}/v1", "kind": kind.kind, "spec": spec, "metadata": metadata}
    for template in pod_templates(obj, TABLE):
        list(template.containers())
        assert template.completes in (True, False)
        with_template(obj, template, template.pod)
