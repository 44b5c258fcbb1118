"""`chassis scan --view models` against a small API server."""

from __future__ import annotations

import pytest

from policies.kube.json import Json
from tests.webhook.cli.scanned import PODS, SERVER, InCluster, named
from tests.webhook.kube.apiserver import FakeApiServer

PULLER: Json = {"name": "model-puller", "image": "puller", "command": ["chassis-puller"]}
LOADED = {"name": "a", "state": "Loaded", "version": "v7", "bytes": 3 << 30}
FAILED: Json = {"name": "b", "state": "Failed", "reason": "NotFound", "message": "nothing\x1b[31m there"}
FAILED |= {"bytesDone": 1 << 20, "bytesTotal": 4 << 20}
PROXIED = f"{PODS}/one:9999/proxy/v1/models"


def pod(
    name: str, *args: str, phase: str = "Running", ip: str = "10.1.2.3", **containers: list[Json]
) -> Json:
    spec = {"containers": [SERVER], "initContainers": [{**PULLER, "args": list(args)}], "nodeName": "n1"}
    return {**named(name, spec | containers), "status": {"phase": phase, "podIP": ip}}


@pytest.fixture
async def pulling(fake: FakeApiServer) -> FakeApiServer:
    await fake.put(PODS, pod("one", "--port=9999"))
    await fake.put(PODS, pod("two"))
    await fake.put(PODS, pod("gone", phase="Succeeded"))
    await fake.put(PODS, pod("none", initContainers=[]))
    fake.spoilt[PROXIED] = {"models": [FAILED, LOADED]}
    return fake


async def test_pods_with_and_without_an_answer(pulling: FakeApiServer, scan: InCluster) -> None:
    answer = await scan("--view", "models", "-o", "json")
    assert answer.status == 0
    keys = ("pod", "node", "name", "state", "reason")
    assert [tuple(each[key] for key in keys) for each in answer.json] == [
        ("one", "n1", "a", "Loaded", ""),
        ("one", "n1", "b", "Failed", "NotFound"),
        ("two", "n1", "", "Unknown", "NotAsked"),
    ]


async def test_the_table(pulling: FakeApiServer, scan: InCluster) -> None:
    out = (await scan("--view", "models")).out
    head, loaded, failed, *_ = out.splitlines()
    assert head.split() == ["POD", "NODE", "MODEL", "STATE", "VERSION", "BYTES", "SINCE", "WHY"]
    assert loaded.split()[3:7] == ["Loaded", "v7", "3.0", "GiB"]
    assert "1.0 MiB of 4.0 MiB" in failed
    assert "2 models, 1 loaded; 1 pod could not be asked\n" in out
    assert "\x1b" not in out


async def test_a_pod_without_an_address_is_not_asked(pulling: FakeApiServer, scan: InCluster) -> None:
    await pulling.put(PODS, pod("two", phase="Pending", ip=""))
    assert "NotAsked: the pod has no address yet" in (await scan("--view", "models")).out
    assert f"{PODS}/two:9081/proxy/v1/models" not in {path for _, path in pulling.requests}


@pytest.mark.parametrize("answer", [{}, {"models": 1}])
async def test_an_invalid_answer_does_not_mean_no_models(
    pulling: FakeApiServer, scan: InCluster, answer: object
) -> None:
    pulling.spoilt[PROXIED] = answer
    found = (await scan("--view", "models", "-o", "json")).json
    assert [each["reason"] for each in found] == ["NotAsked", "NotAsked"]
