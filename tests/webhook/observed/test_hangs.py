"""Whether a hang is noticed, where an operator sets the probes."""

from __future__ import annotations

import pytest

from policies.core.facts import Facts
from policies.core.pod_templates import pod_templates
from policies.core.workloads import workloads_by_kind
from policies.kube.json import Json
from webhook.observed.hangs import hang_of

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


@pytest.mark.parametrize(
    ("image", "program", "port", "env", "noticed", "by"),
    [
        ("lmsysorg/sglang:v0.4.9.post6-cu126", "sglang.launch_server", 30000, [], False, "before 0.5"),
        ("lmsysorg/sglang:v0.5.3", "sglang.launch_server", 30000, [], True, "liveness endpoint"),
        ("lmsysorg/sglang:latest", "sglang.launch_server", 30000, [], True, "liveness endpoint"),
        (
            "lmsysorg/sglang:v0.5.3",
            "sglang.launch_server",
            30000,
            [{"name": "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "value": "False"}],
            False,
            "with SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=False",
        ),
        (
            "lmsysorg/sglang:v0.5.3",
            "sglang.launch_server",
            30000,
            [{"name": "SGLANG_DIAG_BYPASS_HEALTH_GENERATE", "value": "yes"}],
            False,
            "with SGLANG_DIAG_BYPASS_HEALTH_GENERATE=yes",
        ),
        (
            "lmsysorg/sglang:v0.5.3",
            "sglang.launch_server",
            30000,
            [
                {
                    "name": "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION",
                    "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}},
                }
            ],
            None,
            "its value is unknown",
        ),
        ("registry.example/llm:7", "sglang.launch_server", 30000, [], None, "the version is unknown"),
        ("openmmlab/lmdeploy:v0.9.2", "lmdeploy serve api_server m", 23333, [], False, "before 0.14"),
        ("openmmlab/lmdeploy:v0.16.0", "lmdeploy serve api_server m", 23333, [], True, "liveness endpoint"),
    ],
)
def test_an_endpoint_notices_a_hang_from_some_version_on(
    image: str, program: str, port: int, env: list[Json], noticed: bool | None, by: str
) -> None:
    words = program.split()
    command = [*(["python3", "-m"] if "." in words[0] else []), *words, "--host=0.0.0.0"]
    container: Json = {
        "name": "server",
        "image": image,
        "command": command,
        "env": env,
        "livenessProbe": {"httpGet": {"path": "/health", "port": port}},
    }
    obj = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}
    (template,) = pod_templates(obj, workloads_by_kind())
    hang = hang_of(template, template.containers()[0], Facts())
    assert (hang.noticed, by in hang.by) == (noticed, True)
    assert bool(hang.change) is (noticed is False)
