from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.webhook.cli.scanned import Answer, InCluster
from tests.webhook.kube.apiserver import FakeApiServer, running
from webhook.server.ca_bundle import RESOURCES

ROOT = "/apis/admissionregistration.k8s.io/v1"
NAME = "chassis.mlchassis.dev"


@pytest.fixture
async def fake() -> AsyncIterator[FakeApiServer]:
    async with running() as server:
        yield server


async def unregister(in_cluster: InCluster) -> Answer:
    return await in_cluster("unregister", "--settle=0")


async def test_only_our_configurations_are_deleted(fake: FakeApiServer, in_cluster: InCluster) -> None:
    for resource in RESOURCES:
        for name in (NAME, "somebody.else"):
            await fake.put(f"{ROOT}/{resource}", {"metadata": {"name": name}})
    assert (await unregister(in_cluster)).status == 0
    assert set(fake.objects) == {f"{ROOT}/{resource}/somebody.else" for resource in RESOURCES}


async def test_a_missing_configuration_is_no_error(fake: FakeApiServer, in_cluster: InCluster) -> None:
    await fake.put(f"{ROOT}/{RESOURCES[1]}", {"metadata": {"name": NAME}})
    fake.putting_off = 1
    answer = await unregister(in_cluster)
    assert answer.status == 0
    assert answer.out.splitlines() == [
        f"mutatingwebhookconfigurations {NAME}: not found",
        f"validatingwebhookconfigurations {NAME}: deleted",
    ]
    assert fake.objects == {}


async def test_a_refusal_is_reported(fake: FakeApiServer, in_cluster: InCluster) -> None:
    await fake.forbid(ROOT)
    answer = await unregister(in_cluster)
    assert answer.status == 2
    assert "403 Forbidden" in answer.err
