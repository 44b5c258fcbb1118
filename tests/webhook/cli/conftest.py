"""A cluster to scan, and what scans it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.webhook.cli.scanned import Scan, cluster, scanner
from tests.webhook.kube.apiserver import FakeApiServer


@pytest.fixture
async def fake() -> AsyncIterator[FakeApiServer]:
    async with cluster() as server:
        yield server


@pytest.fixture
def chassis(fake: FakeApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Scan:
    return scanner(fake, tmp_path, capsys)
