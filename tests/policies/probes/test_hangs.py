"""Whether a hang is noticed, where an operator sets the probes."""

from __future__ import annotations

import pytest

from policies.core.facts import Facts
from policies.core.pod_templates import pod_templates
from policies.core.workloads import workloads_by_kind
from policies.kube.json import Json
from policies.probes.hangs import hang_of

CONTAINERS = [{"name": "ray", "image": "rayproject/ray:2.40.0"}, {"name": "api", "image": "own/api:1"}]
RAY_CLUSTER: Json = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "metadata": {"name": "ray"},
    "spec": {"headGroupSpec": {"template": {"spec": {"containers": CONTAINERS}}}},
}


SERVING_RUNTIME: Json = {
    "apiVersion": "serving.kserve.io/v1alpha1",
    "kind": "ServingRuntime",
    "metadata": {"name": "vllm"},
    "spec": {
        "containers": [{"name": "kserve-container", "image": "vllm/vllm-openai", "args": ["--model=m"]}]
    },
}


INFERENCE_SERVICE: Json = {
    "apiVersion": "serving.kserve.io/v1beta1",
    "kind": "InferenceService",
    "metadata": {"name": "llm"},
    "spec": {"predictor": {"model": {"modelFormat": {"name": "vllm"}, "args": ["--model=m", "--port=8080"]}}},
}


@pytest.mark.parametrize("merged", [SERVING_RUNTIME, INFERENCE_SERVICE], ids=["runtime", "service"])
def test_the_pods_of_a_serving_runtime_get_the_probes(merged: Json) -> None:
    hangs = [
        hang_of(template, each, Facts())
        for template in pod_templates(merged, workloads_by_kind())
        for each in template.containers()
        if each.name == "kserve-container"
    ]
    assert hangs
    for hang in hangs:
        assert hang.noticed is None
        assert "these get the probes" in hang.by
        assert not hang.change


def test_kuberay_sets_the_probes_of_its_own_container() -> None:
    (head,) = pod_templates(RAY_CLUSTER, workloads_by_kind())
    ray, api = (hang_of(head, each, Facts()) for each in head.containers())
    assert ray.noticed is None
    assert "KubeRay gives its pods a livenessProbe" in ray.by
    assert not ray.change
    assert api.noticed is False
    assert api.change
