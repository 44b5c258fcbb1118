"""A cluster to scan, what scans it, and a browser for its reports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.webhook.cli.browser import Tab, browsing, chromium
from tests.webhook.cli.scanned import Scan, cluster, scanner
from tests.webhook.kube.apiserver import FakeApiServer


@pytest.fixture
async def fake() -> AsyncIterator[FakeApiServer]:
    async with cluster() as server:
        yield server


@pytest.fixture
def chassis(fake: FakeApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Scan:
    return scanner(fake, tmp_path, capsys)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chromium(tmp_path_factory.mktemp("browser") / "profile") as running:
        yield running


@pytest.fixture
async def tab(browser: str) -> AsyncIterator[Tab]:
    async with browsing(browser) as driven:
        yield driven
