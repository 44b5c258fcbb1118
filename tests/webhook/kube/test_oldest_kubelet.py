"""The log about the oldest kubelet: once for each change of it, however many nodes there are."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from policies.kube.json import Json
from tests.webhook.kube.filled import fill, stores_of
from webhook.kube import caches
from webhook.kube.caches import ClusterCache, OldestKubelet


def node(name: str, version: str) -> Json:
    return {"metadata": {"name": name}, "status": {"nodeInfo": {"kubeletVersion": version}}}


async def settled() -> None:
    """Everything that is due now has run."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_each_change_of_the_oldest_kubelet_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "SETTLE_SECONDS", 0.0)
    shown: list[int] = []
    cache = ClusterCache(on_change=lambda resource: kubelet.changed(resource))
    kubelet = OldestKubelet(cache, shown.append)
    store = stores_of(cache)["Node"]
    with capture_logs() as lines:
        fill(store, node("new", "v1.36.1"))
        await settled()
        store.put(node("z", "v1.36.4"))
        store.put(node("c", "v1.37.0"))
        await settled()
        store.put(node("old", "v1.28.15-gke.1"))
        await settled()
        store.remove(node("old", "v1.28.15-gke.1"))
        await settled()
        fill(store)
        await settled()
    assert shown == [36, 28, 36, 0]
    assert [line.get("node") for line in lines] == ["new", "old", "new", None]
    assert lines[1]["version"] == "1.28"
