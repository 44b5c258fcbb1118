"""Servers that run while a test does."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.webhook.server.running import Running, serving


@pytest.fixture(params=[False, True], ids=["at once", "may wait"])
async def running(request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    async with serving(waits=request.param) as it:
        yield it


@pytest.fixture
async def waiting() -> AsyncIterator[Running]:
    """Its answers may be awaited."""
    async with serving(waits=True) as it:
        yield it
