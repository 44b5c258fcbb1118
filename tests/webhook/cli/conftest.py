"""The command line, a cluster for it, and a browser for its reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.webhook.cli.browser import Tab, browsing, chromium
from tests.webhook.cli.scanned import Answer, Chassis, InCluster, cluster
from tests.webhook.kube.apiserver import FakeApiServer
from webhook.cli import main as cli


@pytest.fixture
async def fake() -> AsyncIterator[FakeApiServer]:
    async with cluster() as server:
        yield server


@pytest.fixture
def chassis(capsys: pytest.CaptureFixture[str]) -> Chassis:
    """Runs a command."""

    def run(*argv: object) -> Answer:
        status = cli.main([str(each) for each in argv])
        return Answer(status, *capsys.readouterr())

    return run


@pytest.fixture
def in_cluster(fake: FakeApiServer, chassis: Chassis, tmp_path: Path) -> InCluster:
    """Runs a command against the cluster; in a thread, because the server needs this event loop."""
    kubeconfig = fake.kubeconfig(tmp_path)

    async def run(*argv: object) -> Answer:
        return await asyncio.to_thread(chassis, *argv, "--kubeconfig", kubeconfig)

    return run


@pytest.fixture
def scan(in_cluster: InCluster) -> InCluster:
    """Runs `chassis scan` in the namespace `ml`, unless the arguments choose another one."""

    async def run(*argv: str) -> Answer:
        namespace = () if {"-A", "-n"} & set(argv) else ("-n", "ml")
        return await in_cluster("scan", *namespace, *argv)

    return run


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chromium(tmp_path_factory.mktemp("browser") / "profile") as running:
        yield running


@pytest.fixture
async def tab(browser: str) -> AsyncIterator[Tab]:
    async with browsing(browser) as driven:
        yield driven
