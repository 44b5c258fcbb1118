"""An API server made of dictionaries, and a connection to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.webhook.kube.apiserver import FakeApiServer, running
from webhook.kube.api import ApiServer


@pytest.fixture
async def fake() -> AsyncIterator[FakeApiServer]:
    async with running() as server:
        yield server


@pytest.fixture
async def api(fake: FakeApiServer, tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer.connect(fake.kubeconfig(tmp_path)) as connected:
        yield connected
