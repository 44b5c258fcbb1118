"""`chassis scan --view servers` against a small API server."""

from __future__ import annotations

import pytest

from policies.kube.json import Json
from policies.probes.preset import known_presets
from tests.webhook.cli.scanned import DEPLOYMENTS, PODS, SERVER, InCluster, deployment, named
from tests.webhook.kube.apiserver import FakeApiServer
from webhook.observed.hangs import noticed

VLLM: Json = {
    **SERVER,
    "command": ["vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct", "--shutdown-timeout=40"],
}
READY = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}


@pytest.fixture
async def served(fake: FakeApiServer) -> FakeApiServer:
    await fake.put(DEPLOYMENTS, deployment("llm", VLLM))
    await fake.put(DEPLOYMENTS, deployment("web", {"name": "main", "image": "registry.example/cron:1"}))
    for n, status in enumerate(({"phase": "Pending"}, READY)):
        owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm", "uid": "u", "controller": True}
        made = named(f"llm-{n}", {"containers": [VLLM]}, labels={"app": "llm"}, ownerReferences=[owner])
        await fake.put(PODS, {**made, "status": status})
    return fake


async def test_each_serving_workload_is_described(served: FakeApiServer, scan: InCluster) -> None:
    answer = await scan("--view", "servers", "-o", "json")
    assert answer.status == 0
    [found] = answer.json
    assert (found["kind"], found["name"], found["container"]) == ("Deployment", "llm", "main")
    assert (found["server"], found["version"]) == ("vllm", "0.11.0")
    assert (found["port"], found["livePath"], found["readyPath"]) == (8000, "/health", "/health")
    assert found["models"] == ["meta-llama/Llama-3.1-8B-Instruct"]
    assert found["drainSeconds"] == 40
    assert found["startBudgetSeconds"] >= 600
    assert set(found["probes"]) == {"startupProbe", "readinessProbe", "livenessProbe"}
    assert any("a hung engine: not noticed" in notice for notice in found["notices"])


@pytest.mark.parametrize("by_hand", [False, True])
async def test_what_was_tried_is_shown_of_the_probes_that_were_tried(
    by_hand: bool, fake: FakeApiServer, scan: InCluster
) -> None:
    image = "nvcr.io/nvidia/tritonserver:25.06-py3"
    triton: Json = {"name": "main", "image": image, "args": ["tritonserver"]}
    if by_hand:  # it asks no model, so a call that never returns is not noticed
        triton["livenessProbe"] = {"httpGet": {"path": "/v2/health/live", "port": 8000}}
    await fake.put(DEPLOYMENTS, deployment("vision", {**triton, "ports": [{"containerPort": 8000}]}))
    [found] = (await scan("--view", "servers", "-o", "json")).json
    assert any("1 call never returns: noticed" in notice for notice in found["notices"]) is not by_hand
    assert any("a hung engine: not noticed" in notice for notice in found["notices"])


async def test_the_table(served: FakeApiServer, scan: InCluster) -> None:
    hostile = deployment("x", {**VLLM, "command": ["vllm", "serve", "<script>alert(1)</script>\x1b[31m"]})
    await served.put(DEPLOYMENTS, hostile)
    text = (await scan("--view", "servers")).out
    assert text.splitlines()[0].split() == [
        *("WORKLOAD", "SERVER", "VERSION", "PORT", "HEALTH", "MODELS", "DRAIN", "BUDGET")
    ]
    assert "ml/llm (Deployment, main)" in text
    assert "\n    livenessProbe: a restart after 3 min\n" in text
    assert "\n    a hung engine: not noticed; liveness by progress notices it (vLLM" in text
    assert "40 s (grace" in text
    assert "2 serving containers" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("volume", "shown"),
    [
        ({"image": {"reference": "registry.example/models/llama:70b"}}, "models/llama:70b"),
        ({"persistentVolumeClaim": {"claimName": "llama-3-8b"}}, "llama-3-8b"),
        ({"image": {"reference": "registry.example/models/acme:1"}}, "/models"),
    ],
)
async def test_a_folder_is_named_by_its_volume(
    fake: FakeApiServer, scan: InCluster, volume: Json, shown: str
) -> None:
    mounts = [{"name": "m", "mountPath": "/models"}]
    made = deployment("llm", {**VLLM, "command": ["vllm", "serve", "/models"], "volumeMounts": mounts})
    made["spec"]["template"]["spec"]["volumes"] = [{"name": "m", **volume}]
    await fake.put(DEPLOYMENTS, made)
    [found] = (await scan("--view", "servers", "-o", "json")).json
    assert found["models"] == [shown]


async def test_a_version_is_written_as_in_the_tag(fake: FakeApiServer, scan: InCluster) -> None:
    image = "nvcr.io/nvidia/tritonserver:24.05-py3"
    await fake.put(
        DEPLOYMENTS, deployment("t", {"name": "main", "image": image, "command": ["tritonserver"]})
    )
    [found] = (await scan("--view", "servers", "-o", "json")).json
    assert (found["server"], found["version"]) == ("triton", "24.05")


async def test_the_tag_of_a_base_image_is_the_version(fake: FakeApiServer, scan: InCluster) -> None:
    main = {"name": "main", "image": "ghcr.io/mlflow/mlflow:v3.14.0", "command": ["mlflow", "server"]}
    await fake.put(DEPLOYMENTS, deployment("tracking", main))
    [found] = (await scan("--view", "servers", "-o", "json")).json
    assert (found["server"], found["version"]) == ("mlflow", "3.14.0")


def test_the_tables_are_of_known_presets() -> None:
    assert set(noticed()) <= set(known_presets())


API = "registry.example/api:1"
OPEN: Json = {"tcpSocket": {"port": 8000}}


HANGS: list[tuple[Json, dict[str, str], bool | None, str, str]] = [
    (VLLM, {}, True, "its finished work, with one request", ""),
    (VLLM | {"livenessProbe": {"httpGet": {"path": "/health", "port": 8000}}}, {}, False, "", "Remove"),
    (VLLM | {"command": [*VLLM["command"], "--enable-sleep-mode"]}, {}, False, "--enable-sleep-mode", ""),
    (
        {"image": API, "command": ["uvicorn", "a:app", "--host=0.0.0.0"]},
        {},
        True,
        "whether it accepts connections",
        "Hung threads are noticed only with the annotation mlchassis.dev/canary: POST /PATH.",
    ),
    (
        {"image": API, "command": ["uvicorn", "a:app", "--host=0.0.0.0"]},
        {"mlchassis.dev/canary": "POST /predict"},
        True,
        "POST /predict",
        "",
    ),
    (
        {"image": API, "ports": [{"containerPort": 8000}]},
        {},
        False,
        "it has no livenessProbe",
        "Add the annotation mlchassis.dev/canary: POST /PATH.",
    ),
    (
        {"image": API, "ports": [{"containerPort": 8000}], "livenessProbe": OPEN},
        {},
        False,
        "only checks for an open port",
        "Replace the livenessProbe with the annotation",
    ),
    (
        {
            "image": "lmsysorg/sglang:v0.5.0",
            "command": ["python3", "-m", "sglang.launch_server", "--host=0.0.0.0"],
        },
        {},
        True,
        "",
        "",
    ),
    ({"image": "ollama/ollama:0.9.0"}, {}, False, "ollama does not notice it", "Replace"),
    (
        {"image": "ghcr.io/ggml-org/llama.cpp:server-b4719"},
        {},
        False,
        "checks for an open port",
        "Replace",
    ),
    ({"image": "pytorch/torchserve:0.12.0-cpu"}, {}, True, "itself replaces a worker", ""),
    (
        {"image": API, "command": ["trtllm-serve", "m", "--host=0.0.0.0", "--port=8000"]},
        {},
        True,
        "GET /health_generate if no client gets an answer",
        "",
    ),
    (
        {"image": API, "ports": [{"containerPort": 80}], "livenessProbe": {"exec": {"command": ["x"]}}},
        {},
        None,
        "it has its own livenessProbe",
        "",
    ),
]
"""A container, its pod's annotations, whether liveness notices a hang, by what, and how to change that."""


async def test_a_hang(fake: FakeApiServer, scan: InCluster) -> None:
    for number, (container, annotated, *_) in enumerate(HANGS):
        made = deployment(f"llm-{number}", {"name": "main", **container})
        made["spec"]["template"]["metadata"]["annotations"] = annotated
        await fake.put(DEPLOYMENTS, made)
    found = {each["name"]: each["hang"] for each in (await scan("--view", "servers", "-o", "json")).json}
    assert len(found) == len(HANGS)
    for number, (container, _, noticed_, by, change) in enumerate(HANGS):
        hang = found[f"llm-{number}"]
        assert hang["noticed"] is noticed_, container
        assert by in hang["by"], container
        assert hang["change"].startswith(change), container
        assert bool(change) == bool(hang["change"]), container
        assert bool(hang["after"]) == (noticed_ is True), container
    noticed_in = sum(each[2] is True for each in HANGS)
    counted = f"{len(HANGS)} serving containers; a hang would be noticed in {noticed_in}"
    assert (await scan("--view", "servers")).out.splitlines()[-1] == counted
