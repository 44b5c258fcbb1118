"""A reflector and an API server, or something in between, that answers what no API server should."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from policies.core.resources import Resource, resource_kinds
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
    store = Store(next(known for known in resource_kinds() if known.resource is Resource.SERVICES))
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


class Pauses:
    """In place of `random` in the reflector: notes the longest pause that is possible, and pauses briefly."""

    def __init__(self) -> None:
        self.longest: list[float] = []

    def uniform(self, _: float, longest: float) -> float:
        self.longest.append(longest)
        return 0.001

    def randint(self, _: int, longest: int) -> int:
        return longest


@pytest.mark.parametrize("begins", [True, False])
async def test_watches_that_all_end_with_410_are_tried_again_ever_more_slowly(
    begins: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time costs the API server a list."""
    monkeypatch.setattr(reflector, "random", pauses := Pauses())
    store = Store(next(known for known in resource_kinds() if known.resource is Resource.SERVICES))
    async with running() as fake, ApiServer.connect(fake.kubeconfig(tmp_path)) as api:
        if begins:
            fake.gone = True
        else:
            fake.oldest = fake.version + 1
        task = asyncio.create_task(Reflector(api, SERVICES, store).run())
        await until(lambda: len(pauses.longest) >= 8)
        assert pauses.longest[:8] == [1, 2, 4, 8, 16, 30, 30, 30]
        assert store.synced, "what is listed is known"
        fake.gone, fake.oldest = False, 0
        await fake.put("/api/v1/namespaces/ml/services", {"metadata": {"name": "a", "namespace": "ml"}})
        await until(lambda: len(store) == 1)
        await until(lambda: fake._watches)
        monkeypatch.setattr(reflector, "STEADY_SECONDS", 0)
        seen = len(pauses.longest)
        await fake.expire()
        await until(lambda: len(pauses.longest) >= seen + 2)
        assert max(pauses.longest[seen : seen + 2]) <= 1, "an end, then one 410, after it was steady"
        await stopped(task)


async def test_watches_that_end_at_once_are_tried_again_ever_more_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "random", pauses := Pauses())
    store = Store(next(known for known in resource_kinds() if known.resource is Resource.SERVICES))
    async with running() as fake, ApiServer.connect(fake.kubeconfig(tmp_path)) as api:
        monkeypatch.setattr(reflector, "SHORT_SECONDS", 3600.0)  # however slow this machine is
        task = asyncio.create_task(Reflector(api, SERVICES, store).run())
        while len(pauses.longest) < 4:
            await until(lambda: fake._watches or len(pauses.longest) >= 4)
            await fake.end_watches()
            await asyncio.sleep(0)
        assert pauses.longest[:4] == [1, 2, 4, 8]
        assert len([path for _, path in fake.requests if path == SERVICES]) >= 5
        await stopped(task)


async def stopped(task: asyncio.Task[None]) -> None:
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
