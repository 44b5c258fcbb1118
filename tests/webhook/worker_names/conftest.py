"""A namer with the API server that it asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.webhook.kube.apiserver import running
from tests.webhook.worker_names.setting import Setting
from webhook.kube.api import ApiServer
from webhook.worker_names import cluster


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    async with running() as fake, ApiServer.connect(fake.kubeconfig(tmp_path)) as api:
        yield Setting(fake, api)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The history of pods is read whole, however slow the machine is."""
    monkeypatch.setattr(cluster, "HISTORY_SECONDS", 60.0)
