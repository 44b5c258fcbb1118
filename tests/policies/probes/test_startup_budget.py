"""The expected start, the model's size that it follows from, and the startup budget."""

import json
from typing import Any

import pytest

from policies.core.facts import Facts
from policies.core.listing import Listing
from policies.core.pod_view import PodView
from policies.core.resources import Resource
from policies.core.settings import default_settings
from policies.kube.json import Json
from policies.kube.pods import Container
from policies.probes.declared_models import declared_size
from policies.probes.standard_probes_settings import StandardProbes
from policies.probes.startup_budget import Start, budget_of, expected_start, start_of

LLAMA = "meta-llama/Llama-3.1-70B-Instruct"
GIB = 1 << 30
HOUR = 3600
SECONDS = 60 - (-140 * 10**9 // (64 << 20))
"""140 GB at 64 MiB/s, and a minute until the server begins."""
API: Json = {"name": "api", "image": "registry.example/api:1", "ports": [{"containerPort": 8000}]}
TRITON: Json = {"name": "triton", "image": "nvcr.io/nvidia/tritonserver:25.06-py3"}
HELPER: Json = {"name": "helper"}
HELPERS_SIZE: Json = {"model_size.helper": "2Gi"}
VLLM: Json = {"name": "server", "image": "vllm/vllm-openai:v0.9.1"}
CACHE: Json = {"name": "cache", "persistentVolumeClaim": {"claimName": "c"}}


def pod(*specs: Json, volumes: tuple[Json, ...] = (), **annotations: Any) -> Json:
    """A pod whose containers mount all volumes."""
    mounts = [{"name": volume["name"], "mountPath": f"/mnt/{volume['name']}"} for volume in volumes]
    keys = {f"mlchassis.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    mains = [{"volumeMounts": mounts, **spec} for spec in specs]
    return {"metadata": {"annotations": keys}, "spec": {"containers": mains, "volumes": list(volumes)}}


def vllm(*args: str, volumes: tuple[Json, ...] = (), **container: Any) -> Json:
    return pod({**VLLM, "args": list(args) or ["/models/ours"], **container}, volumes=volumes)


def first(of: Json) -> tuple[PodView, Container]:
    view = PodView(of)
    return view, view.containers[0]


def start(of: Json) -> Start | None:
    return start_of(*first(of), Facts())


def budget(of: Json) -> int:
    return budget_of(*first(of), Facts()).seconds


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (
            vllm(LLAMA),
            Start(SECONDS, "140 GB at 64 MiB/s", 600, SECONDS, source="vllm, from Llama-3.1-70B-Instruct"),
        ),
        (
            vllm("Qwen/Qwen2.5-0.5B"),
            Start(600, "the usual start of vllm", 600, 75, source="vllm, from Qwen2.5-0.5B"),
        ),
        (vllm("/models/ours"), Start(600, "the usual start of vllm", 600, source="vllm")),
        (pod({**API, "args": [LLAMA]}), None),
    ],
    ids=["size by name", "small", "unknown size", "perhaps a client"],
)
def test_the_start_has_a_reason(of: Json, expected: Start | None) -> None:
    assert start(of) == expected


@pytest.mark.parametrize(
    "container",
    [
        {"args": ["--model", LLAMA]},
        {"args": [f"--model={LLAMA}", "--tensor-parallel-size=4"]},
        {"args": ["--model=$(MODEL_ID)"], "env": [{"name": "MODEL_ID", "value": LLAMA}]},
        {"command": ["sh", "-c", f"exec vllm serve {LLAMA} --port 8000"], "args": []},
    ],
)
def test_the_places_of_a_model_name(container: Json) -> None:
    found = start(pod({**VLLM, **container}))
    assert found is not None
    assert found.loading == SECONDS


@pytest.mark.parametrize(
    ("of", "seconds"),
    [
        (pod(TRITON), [180]),
        (pod(TRITON, model_size="1Gi"), [180]),
        (pod(TRITON, model_size="24Gi"), [60 + 24 * 16]),
        (pod(API, model_size="1Gi"), [76]),
        (pod(API), [None]),
        (pod(TRITON, expected_start="90s", model_size="24Gi"), [90]),
        (pod(TRITON, expected_start="soon"), [180]),
        (pod(HELPER, API, model_size="1Gi"), [None, 76]),
        (pod(HELPER, model_size="1Gi"), [76]),
        (pod(HELPER, API, **HELPERS_SIZE), [92, None]),
        (
            pod(
                VLLM,
                {**API, "name": "istio-proxy"},
                {**API, "command": ["chassis-puller"]},
                model_size="140Gi",
            ),
            [60 + 140 * 1024 // 64, None, None],
        ),
    ],
)
def test_the_expected_start_of_each_container(of: Json, seconds: list[int | None]) -> None:
    view = PodView(of)
    assert [expected_start(view, each, Facts()) for each in view.containers] == seconds


class Cluster:
    """A cluster with one model config."""

    def __init__(self, *memory: str) -> None:
        models = [
            {"modelName": f"m{n}", "modelSpec": {"storageUri": "s3://m/x", "memory": size}}
            for n, size in enumerate(memory)
        ]
        self.config = {"metadata": {"name": "models"}, "data": {"models.json": json.dumps(models)}}

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        return Listing([self.config]) if resource is Resource.MODEL_CONFIGS else None


@pytest.mark.parametrize(
    ("annotations", "facts", "size"),
    [
        ({"model_config": "models"}, Facts(cluster=Cluster("3Gi", "1Gi")), 4 * GIB),
        ({"model_config": "models"}, Facts(cluster=Cluster()), None),
        ({"model_config": "models"}, Facts(), None),
        ({"model_config": "others"}, Facts(cluster=Cluster("3Gi")), None),
        ({"model_config": "models", "model_size": "1Gi"}, Facts(cluster=Cluster("3Gi")), GIB),
    ],
    ids=["sum", "no models", "no cluster", "missing", "annotation wins"],
)
def test_the_declared_size(annotations: Json, facts: Facts, size: int | None) -> None:
    assert declared_size(*first(pod(API, **annotations)), facts)[0] == size


@pytest.mark.parametrize(
    ("of", "seconds"),
    [
        (vllm(LLAMA), 6 * SECONDS),
        (vllm(LLAMA, volumes=(CACHE,)), 3 * SECONDS),
        (vllm(LLAMA, volumes=({"name": "scratch", "emptyDir": {}},)), 3 * SECONDS),
        (vllm(LLAMA, volumes=({"name": "shm", "emptyDir": {"medium": "Memory"}},)), 6 * SECONDS),
        (pod({"name": "api", "image": "registry.example/api:1"}), HOUR),
        (vllm(), HOUR),
        (pod({"name": "m", "image": "ollama/ollama"}), HOUR),
    ],
    ids=["download", "claim", "emptyDir", "in memory", "unknown server", "unknown size", "no model"],
)
def test_the_budget(of: Json, seconds: int) -> None:
    assert budget(of) == seconds


def room(volume: Json) -> Json:
    return vllm(volumes=({"name": "models", **volume},))


CLAIMED = {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "1Ti"}}}}}


@pytest.mark.parametrize(
    ("of", "size"),
    [
        (vllm(resources={"limits": {"nvidia.com/gpu": "8"}}), 640 * 10**9),
        (vllm(resources={kind: {"nvidia.com/gpu": 8} for kind in ("limits", "requests")}), 640 * 10**9),
        (vllm(resources={"requests": {"memory": "512Gi"}}), 512 << 30),
        (room({"emptyDir": {"sizeLimit": "1Ti"}}), 1 << 40),
        (room({"ephemeral": CLAIMED}), 1 << 40),
    ],
    ids=["limits", "both", "memory", "emptyDir", "claim"],
)
def test_an_unknown_size_gets_the_time_to_fill_the_room(of: Json, size: int) -> None:
    assert HOUR < budget(of) == 60 - (-size // (64 << 20))
    of["spec"]["containers"][0] |= {"volumeMounts": [], "resources": {}}
    assert budget(of) == HOUR


@pytest.mark.parametrize("resource", ["aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "google.com/tpu"])
def test_models_are_compiled_first(resource: str) -> None:
    resources = {"limits": {resource: 1}}
    assert budget(vllm(resources=resources)) == 3 * HOUR
    assert budget(vllm(LLAMA, resources=resources)) == 18 * SECONDS
    annotated = pod({**VLLM, "args": [LLAMA], "resources": resources}, expected_start="10m")
    assert budget(annotated) == 3 * 600, "the annotation includes compilation"


def test_settings() -> None:
    settings = default_settings(StandardProbes)
    assert settings.default_start * settings.startup_factor == HOUR
