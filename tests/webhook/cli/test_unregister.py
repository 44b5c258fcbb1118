from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.webhook.kube.apiserver import FakeApiServer, running
from webhook.cli import main as cli
from webhook.server.ca_bundle import RESOURCES

ROOT = "/apis/admissionregistration.k8s.io/v1"
NAME = "chassis.mlchassis.dev"


@pytest.fixture
async def fake() -> AsyncIterator[FakeApiServer]:
    async with running() as server:
        yield server


async def unregister(fake: FakeApiServer, directory: Path) -> int:
    """In a thread, for the server needs this one's loop."""
    arguments = ["unregister", "--kubeconfig", str(fake.kubeconfig(directory)), "--settle=0"]
    return await asyncio.to_thread(cli.main, arguments)


async def test_ours_go_and_others_stay(fake: FakeApiServer, tmp_path: Path) -> None:
    for resource in RESOURCES:
        for name in (NAME, "somebody.else"):
            await fake.put(f"{ROOT}/{resource}", {"metadata": {"name": name}})
    assert await unregister(fake, tmp_path) == 0
    assert set(fake.objects) == {f"{ROOT}/{resource}/somebody.else" for resource in RESOURCES}


async def test_one_that_is_gone_already_is_no_error(
    fake: FakeApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await fake.put(f"{ROOT}/{RESOURCES[1]}", {"metadata": {"name": NAME}})
    fake.putting_off = 1
    assert await unregister(fake, tmp_path) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"mutatingwebhookconfigurations {NAME}: not found",
        f"validatingwebhookconfigurations {NAME}: deleted",
    ]
    assert fake.objects == {}


async def test_a_refusal_is_reported(
    fake: FakeApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await fake.forbid(ROOT)
    assert await unregister(fake, tmp_path) == 2
    assert "403 Forbidden" in capsys.readouterr().err
