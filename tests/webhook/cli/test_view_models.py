"""`chassis scan --view models` against a small API server."""

from __future__ import annotations

import json

import pytest

from policies.kube.json import Json
from tests.webhook.cli.scanned import PODS, SERVER, Scan, named
from tests.webhook.kube.apiserver import FakeApiServer

PULLER: Json = {"name": "model-puller", "image": "puller", "command": ["chassis-puller"]}
MODEL = {
    "name": "a",
    "state": "Loaded",
    "reason": "",
    "message": "",
    "version": "v7",
    "bytes": 3 << 30,
    "since": "2026-11-22T10:00:00+00:00",
}
FAILED = {
    "name": "b",
    "state": "Failed",
    "reason": "NotFound",
    "message": "nothing\x1b[31m there",
    "bytesDone": 1 << 20,
    "bytesTotal": 4 << 20,
    "since": "",
}


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
    fake.spoilt[f"{PODS}/one:9999/proxy/v1/models"] = {"models": [FAILED, MODEL]}
    return fake


async def test_models_of_pods_that_answer_and_pods_that_do_not(pulling: FakeApiServer, chassis: Scan) -> None:
    answer = await chassis("--view", "models", "-n", "ml", "-o", "json")
    assert answer.status == 0
    one, two, unknown = json.loads(answer.out)
    assert (one["pod"], one["node"], one["name"], one["state"]) == ("one", "n1", "a", "Loaded")
    assert (two["name"], two["reason"]) == ("b", "NotFound")
    assert (unknown["pod"], unknown["name"], unknown["state"], unknown["reason"]) == (
        *("two", "", "Unknown"),
        "NotAsked",
    )


async def test_the_table(pulling: FakeApiServer, chassis: Scan) -> None:
    out = (await chassis("--view", "models", "-n", "ml")).out
    head, loaded, failed, *_ = out.splitlines()
    assert head.split() == ["POD", "NODE", "MODEL", "STATE", "VERSION", "BYTES", "SINCE", "WHY"]
    assert loaded.split()[3:7] == ["Loaded", "v7", "3.0", "GiB"]
    assert "1.0 MiB of 4.0 MiB" in failed
    assert "2 models, 1 loaded; 1 pod could not be asked\n" in out
    assert "\x1b" not in out


async def test_a_pod_without_an_address_is_not_asked(pulling: FakeApiServer, chassis: Scan) -> None:
    await pulling.put(PODS, pod("two", phase="Pending", ip=""))
    out = (await chassis("--view", "models", "-n", "ml")).out
    assert "NotAsked: the pod has no address yet" in out
    assert f"{PODS}/two:9081/proxy/v1/models" not in {path for _, path in pulling.requests}


@pytest.mark.parametrize("answer", [{}, {"models": 1}])
async def test_an_answer_without_models_is_not_taken_for_none(
    pulling: FakeApiServer, chassis: Scan, answer: object
) -> None:
    pulling.spoilt[f"{PODS}/one:9999/proxy/v1/models"] = answer
    found = json.loads((await chassis("--view", "models", "-n", "ml", "-o", "json")).out)
    assert [each["reason"] for each in found] == ["NotAsked", "NotAsked"]


async def test_other_outputs_are_refused(pulling: FakeApiServer, chassis: Scan) -> None:
    for further in (("-o", "html"), ("--ask",), ("--statistics",)):
        assert (await chassis("--view", "models", *further)).status == 2
