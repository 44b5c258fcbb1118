"""Reflectors, with malformed answers, expired lists and watches that end at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.webhook.kube.apiserver import FakeApiServer, until
from tests.webhook.kube.filled import service_store
from webhook.kube import api as cluster
from webhook.kube import reflector
from webhook.kube.api import ApiServer
from webhook.kube.caches import Store
from webhook.kube.reflector import Reflector

SERVICES = "/api/v1/services"
IN_ML = "/api/v1/namespaces/ml/services"
SERVICE = {"metadata": {"name": "a", "namespace": "ml"}}


@asynccontextmanager
async def reflecting(api: ApiServer, **how: Any) -> AsyncIterator[Store]:
    """A store of Services, and a reflector that never ends by itself."""
    store = service_store()
    task = asyncio.create_task(Reflector(api, SERVICES, store, **how).run())
    try:
        yield store
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def listed(items: Any) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "7"}, "items": items}


@pytest.mark.parametrize(
    "answer",
    [
        *({}, [], "items", {"kind": "Status", "status": "Success"}, listed(7), listed([7])),
        *(listed([{"metadata": 7}]), listed([{"metadata": {"name": ["x"]}}])),
        listed([{"metadata": {"name": "x" * 10_000}}]),
    ],
    ids=lambda answer: str(answer)[:60],
)
async def test_a_malformed_answer_is_no_empty_list_and_no_end(
    answer: Any, fake: FakeApiServer, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(cluster, "LARGEST_ANSWER", 8_000)
    fake.spoilt[SERVICES] = answer
    async with reflecting(api, longest_pause=0.05) as store:
        await until(lambda: len(fake.requests) >= 3)
        assert not store.synced
        fake.spoilt.clear()
        await fake.put(IN_ML, SERVICE)
        await until(lambda: store.synced)
        assert len(store) == 1


class Pauses:
    """Replaces `random` in the reflector: records the longest possible pause, and pauses briefly."""

    def __init__(self) -> None:
        self.longest: list[float] = []

    def uniform(self, _: float, longest: float) -> float:
        self.longest.append(longest)
        return 0.001

    def randint(self, _: int, longest: int) -> int:
        return longest


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    made = Pauses()
    monkeypatch.setattr(reflector, "random", made)
    return made


@pytest.mark.parametrize("begins", [True, False])
async def test_watches_that_all_end_with_410_are_repeated_with_growing_pauses(
    begins: bool, fake: FakeApiServer, api: ApiServer, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time costs the API server a list."""
    fake.gone, fake.oldest = begins, 0 if begins else fake.version + 1
    async with reflecting(api) as store:
        await until(lambda: len(pauses.longest) >= 8)
        assert pauses.longest[:8] == [1, 2, 4, 8, 16, 30, 30, 30]
        assert store.synced, "what is listed is known"
        fake.gone, fake.oldest = False, 0
        await fake.put(IN_ML, SERVICE)
        await until(lambda: len(store) == 1 and fake._watches)
        monkeypatch.setattr(reflector, "STEADY_SECONDS", 0)
        seen = len(pauses.longest)
        await fake.expire()
        await until(lambda: len(pauses.longest) >= seen + 2)
        assert max(pauses.longest[seen : seen + 2]) <= 1, "an end, then one 410, after it was steady"


async def test_watches_that_end_at_once_are_repeated_with_growing_pauses(
    fake: FakeApiServer, api: ApiServer, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "SHORT_SECONDS", 3600.0)  # however slow this machine is
    async with reflecting(api):
        while len(pauses.longest) < 4:
            await until(lambda: fake._watches or len(pauses.longest) >= 4)
            await fake.end_watches()
            await asyncio.sleep(0)
        assert pauses.longest[:4] == [1, 2, 4, 8]
        assert fake.requests.count(("GET", SERVICES)) >= 5


async def test_a_page_that_is_too_large_is_requested_again_in_smaller_ones(
    fake: FakeApiServer, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "LARGEST_ANSWER", 8_000)
    for n in range(40):
        await fake.put(IN_ML, {"metadata": {"name": f"s-{n}", "annotations": {"a": "x" * 500}}})
    found = [item async for page, _ in api.pages(SERVICES, {}) for item in page]
    assert len({item["metadata"]["name"] for item in found}) == 40
