"""How long a start is expected to take, and how long it may. test_health.py has the annotations."""

from typing import Any

import pytest

from policies.core.facts import Facts
from policies.core.settings import default_settings
from policies.kube.json import Json
from policies.kube.pods import Container, containers
from policies.probes.settings import StandardProbes
from policies.probes.start import Start, budget_of, start_of

LLAMA = "meta-llama/Llama-3.1-70B-Instruct"
HOUR = 3600
SECONDS = 60 - (-140 * 10**9 // (64 << 20))
"""140 GB at 64 MiB/s, and a minute until the server begins."""


def pod(
    *, image: str = "vllm/vllm-openai:v0.9.1", volumes: tuple[Json, ...] = (), **container: object
) -> Json:
    mounts = [{"name": volume["name"], "mountPath": f"/mnt/{volume['name']}"} for volume in volumes]
    server = {"name": "server", "image": image, "volumeMounts": mounts, **container}
    return {"spec": {"containers": [server], "volumes": list(volumes)}}


def only(of: Json) -> Container:
    return next(iter(containers(of)))


def start(of: Json) -> Start | None:
    return start_of(of, only(of), Facts())


def budget(of: Json) -> int:
    return budget_of(of, only(of), Facts()).seconds


def test_the_arithmetic_is_explained() -> None:
    found = start(pod(args=[LLAMA]))
    assert found == Start(
        SECONDS, "140 GB at 64 MiB/s", 600, SECONDS, source="vllm, from Llama-3.1-70B-Instruct"
    )
    small = start(pod(args=["Qwen/Qwen2.5-0.5B"]))
    assert small == Start(600, "the usual start of vllm", 600, 75, source="vllm, from Qwen2.5-0.5B")
    assert start(pod(args=["/models/ours"])) == Start(600, "the usual start of vllm", 600, source="vllm")
    assert start(pod(image="registry.example/api:1", args=[LLAMA])) is None, "it may be its client"


@pytest.mark.parametrize(
    "container",
    [
        {"args": ["--model", LLAMA]},
        {"args": [f"--model={LLAMA}", "--tensor-parallel-size=4"]},
        {"args": ["--model=$(MODEL_ID)"], "env": [{"name": "MODEL_ID", "value": LLAMA}]},
        {"command": ["sh", "-c", f"exec vllm serve {LLAMA} --port 8000"]},
    ],
)
def test_wherever_the_model_is_named(container: dict[str, Any]) -> None:
    found = start(pod(**container))
    assert found is not None
    assert found.loading == SECONDS


def test_without_a_volume_a_kill_begins_the_download_again() -> None:
    kept = pod(args=[LLAMA], volumes=({"name": "cache", "persistentVolumeClaim": {"claimName": "c"}},))
    outlives_the_container = pod(args=[LLAMA], volumes=({"name": "cache", "emptyDir": {}},))
    in_memory = pod(args=[LLAMA], volumes=({"name": "shm", "emptyDir": {"medium": "Memory"}},))
    assert budget(kept) == 3 * SECONDS
    assert budget(outlives_the_container) == 3 * SECONDS
    assert budget(pod(args=[LLAMA])) == budget(in_memory) == 6 * SECONDS


def test_an_unknown_start_gets_an_hour() -> None:
    assert budget(pod(image="registry.example/api:1")) == HOUR
    assert budget(pod(args=["/models/ours"])) == HOUR
    assert budget(pod(image="ollama/ollama")) == HOUR


@pytest.mark.parametrize(
    ("resources", "bytes_at_most"),
    [
        ({"limits": {"nvidia.com/gpu": "8"}}, 640 * 10**9),
        ({"limits": {"nvidia.com/gpu": 8}, "requests": {"nvidia.com/gpu": 8}}, 640 * 10**9),
        ({"requests": {"memory": "512Gi"}}, 512 << 30),
    ],
)
def test_an_unknown_size_gets_the_time_to_fill_the_memory(resources: Json, bytes_at_most: int) -> None:
    found = budget(pod(args=["/models/ours"], resources=resources))
    assert found == 60 - (-bytes_at_most // (64 << 20))
    assert found > HOUR


def test_room_in_volumes() -> None:
    scratch = {"name": "models", "emptyDir": {"sizeLimit": "1Ti"}}
    claimed = {
        "name": "models",
        "ephemeral": {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "1Ti"}}}}},
    }
    assert budget(pod(args=["/m"], volumes=(scratch,))) == 60 + (1 << 40) // (64 << 20)
    assert budget(pod(args=["/m"], volumes=(claimed,))) == 60 + (1 << 40) // (64 << 20)
    elsewhere = pod(args=["/m"], volumes=(scratch,))
    elsewhere["spec"]["containers"][0]["volumeMounts"] = []
    assert budget(elsewhere) == HOUR


@pytest.mark.parametrize("resource", ["aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "google.com/tpu"])
def test_models_are_compiled_first(resource: str) -> None:
    asking: dict[str, Any] = {"resources": {"limits": {resource: 1}}}
    assert budget(pod(args=["/models/ours"], **asking)) == 3 * HOUR
    assert budget(pod(args=[LLAMA], **asking)) == 18 * SECONDS
    told = pod(args=[LLAMA], **asking)
    told["metadata"] = {"annotations": {"mlchassis.dev/expected-start": "10m"}}
    assert budget(told) == 3 * 600, "who says how long it takes has counted that in"


def test_settings() -> None:
    settings = default_settings(StandardProbes)
    assert settings.default_start * settings.startup_factor == HOUR
