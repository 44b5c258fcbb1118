"""The log about the oldest kubelet: once for each change of it, however many nodes there are."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from policies.core.resources import Resource
from policies.kube.json import Json
from webhook.kube import oldest_kubelet
from webhook.kube.caches import ClusterCache, Store
from webhook.kube.oldest_kubelet import OldestKubelet


def node(name: str, version: str) -> Json:
    return {"metadata": {"name": name}, "status": {"nodeInfo": {"kubeletVersion": version}}}


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(oldest_kubelet, "SETTLE_SECONDS", 0.0)
    return []


def watched(said: list[int]) -> Store:
    """The store of the nodes of a cluster that is looked at."""
    cache = ClusterCache(on_change=lambda resource: kubelet.changed(resource))
    kubelet = OldestKubelet(cache, said.append)
    [store] = [store for _, _, store in cache.sources if isinstance(store, Store) and store.kind == "Node"]
    return store


def list_of(store: Store, *nodes: Json) -> None:
    store.begin()
    for item in nodes:
        store.put(item)
    store.commit()


async def settled() -> None:
    """Everything that is due now has run."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_an_old_node_is_logged_when_it_comes_and_when_it_goes(said: list[int]) -> None:
    store = watched(said)
    with capture_logs() as lines:
        list_of(store, node("new", "v1.36.1"))
        await settled()
        store.put(node("old", "v1.28.15-gke.1"))
        await settled()
        store.remove(node("old", "v1.28.15-gke.1"))
        await settled()
    assert said == [36, 28, 36]
    assert [line["node"] for line in lines] == ["new", "old", "new"]
    assert lines[1]["version"] == "1.28"


async def test_nodes_that_change_nothing_are_no_news(said: list[int]) -> None:
    store = watched(said)
    list_of(store, node("a", "v1.36.1"))
    await settled()
    with capture_logs() as lines:
        store.put(node("b", "v1.36.4"))
        store.put(node("c", "v1.37.0"))
        await settled()
    assert (said, lines) == ([36], [])


async def test_without_nodes_it_is_unknown(said: list[int]) -> None:
    store = watched(said)
    list_of(store, node("a", "v1.36.1"))
    await settled()
    list_of(store)
    await settled()
    assert said == [36, 0]


async def test_other_resources_are_not_looked_at(said: list[int]) -> None:
    kubelet = OldestKubelet(ClusterCache(), said.append)
    kubelet.changed(Resource.SERVICES)
    await settled()
    assert said == []
