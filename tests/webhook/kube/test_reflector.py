"""A reflector and an API server, or something in between, that answers what no API server should."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from policies.core.resources import KNOWN, Resource
from tests.webhook.kube.apiserver import running, until
from webhook.kube import api as cluster
from webhook.kube import reflector
from webhook.kube.api import ApiServer
from webhook.kube.caches import Store
from webhook.kube.reflector import Reflector

SERVICES = "/api/v1/services"


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"kind": "Status", "status": "Success"},
        {"metadata": {"resourceVersion": "7"}, "items": 7},
        {"metadata": {"resourceVersion": "7"}, "items": [7]},
        {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": 7}]},
        {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": ["x"]}}]},
        [],
        "items",
        {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "x" * 10_000}}]},
    ],
    ids=lambda answer: str(answer)[:60],
)
async def test_a_strange_answer_is_no_empty_list_and_no_end(
    answer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(cluster, "LARGEST_ANSWER", 8_000)
    store = Store(next(known for known in KNOWN if known.resource is Resource.SERVICES))
    async with running() as fake, ApiServer.connect(fake.kubeconfig(tmp_path)) as api:
        fake.spoilt[SERVICES] = answer
        task = asyncio.create_task(Reflector(api, SERVICES, store, longest_pause=0.05).run())
        await until(lambda: len(fake.requests) >= 3)
        assert not store.synced
        assert not task.done()
        fake.spoilt.clear()
        await fake.put("/api/v1/namespaces/ml/services", {"metadata": {"name": "a", "namespace": "ml"}})
        await until(lambda: store.synced)
        assert len(store) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_page_that_is_too_large_is_asked_for_again_in_smaller_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "LARGEST_ANSWER", 8_000)
    async with running() as fake, ApiServer.connect(fake.kubeconfig(tmp_path)) as api:
        for n in range(40):
            item = {"metadata": {"name": f"s-{n}", "namespace": "ml", "annotations": {"a": "x" * 500}}}
            await fake.put("/api/v1/namespaces/ml/services", item)
        found = [item async for page, _ in api.pages(SERVICES, {}) for item in page]
    assert len({item["metadata"]["name"] for item in found}) == 40
