"""The Lease of the webhook's node shows whether watches deliver events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
from structlog.typing import EventDict

from tests.steady import undisturbed
from tests.webhook.kube.apiserver import FakeApiServer, Silence, running, until
from tests.webhook.kube.filled import service_store
from webhook.kube import api as cluster
from webhook.kube import heartbeat, reflector, watch_health
from webhook.kube.api import WATCH_SECONDS, ApiServer
from webhook.kube.heartbeat import Heartbeat
from webhook.kube.reflector import Reflector
from webhook.kube.watch_health import SHORT_SECONDS, WatchHealth

SERVICES = "/api/v1/services"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
BEAT = 0.05


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "LATE_SECONDS", 1.0)
    monkeypatch.setattr(heartbeat, "ARRIVAL_SECONDS", 0.05)
    monkeypatch.setattr(watch_health, "STALLED_SECONDS", 2)
    monkeypatch.setattr(reflector, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(cluster, "GRACE_SECONDS", 1)


@pytest.fixture
def lines() -> Iterator[list[EventDict]]:
    with structlog.testing.capture_logs() as captured:
        yield captured


class Setup:
    """A fake API server, a watch of Services, and the heartbeat of the node `n`."""

    def __init__(self, fake: FakeApiServer, api: ApiServer) -> None:
        self.fake, self.health, self.services = fake, WatchHealth(), service_store()
        self.kubelet_runs = True
        self.works = [
            Reflector(api, SERVICES, self.services, watch_seconds=SHORT_SECONDS, health=self.health).run(),
            Heartbeat(api, "n", self.health).run(),
            self._kubelet(),
        ]

    async def _kubelet(self) -> None:
        """Renew the Lease of the node."""
        while True:
            if self.kubelet_runs:
                await self.fake.put(LEASES, {"metadata": {"name": "n", "namespace": "kube-node-lease"}})
            await asyncio.sleep(BEAT)

    def requests(self, path: str) -> int:
        return [each for _, each in self.fake.requests].count(path)

    async def has_heartbeat(self) -> None:
        await until(lambda: self.health.has_heartbeat and not self.health.stalled)

    async def lost_heartbeat(self) -> None:
        await until(lambda: not self.health.has_heartbeat)
        assert not self.health.stalled


@asynccontextmanager
async def set_up(directory: Path) -> AsyncIterator[Setup]:
    async with running() as fake, ApiServer.connect(fake.kubeconfig(directory)) as api:
        await fake.put(LEASES, {"metadata": {"name": "n", "namespace": "kube-node-lease"}})
        setup = Setup(fake, api)
        tasks = [asyncio.create_task(work) for work in setup.works]
        try:
            await until(lambda: setup.services.synced and len(fake._watches) == 2)
            yield setup
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("silence", Silence)
async def test_events_that_stalled_watches_hide_are_found(
    silence: Silence, tmp_path: Path, lines: list[EventDict]
) -> None:
    async with set_up(tmp_path) as setup:
        await setup.has_heartbeat()
        setup.fake.silence = silence
        await setup.fake.put("/api/v1/namespaces/ml/services", {"metadata": {"name": "a", "namespace": "ml"}})
        await until(lambda: len(setup.services) == 1)
        setup.fake.silence = None
        await setup.has_heartbeat()
    events = [line["event"] for line in lines]
    assert events[0] == "watches are stalled, restarting them"
    assert events[-1] == "watches deliver events again"


async def test_watches_that_deliver_events_stay_open(tmp_path: Path, lines: list[EventDict]) -> None:
    async def attempt() -> None:
        async with set_up(tmp_path) as setup:
            beats = setup.fake.version + 40  # two seconds, twice the limit
            await until(lambda: setup.fake.version >= beats)
            assert (setup.health.has_heartbeat, setup.health.stalled) == (True, False)
            assert setup.requests(SERVICES) == setup.requests(LEASES) == 2, "one list, one watch"

    await undisturbed(0.5, attempt)
    assert lines == []


async def test_a_late_kubelet_is_no_stalled_watch(tmp_path: Path, lines: list[EventDict]) -> None:
    async def attempt() -> None:
        async with set_up(tmp_path) as setup:
            await setup.has_heartbeat()
            setup.kubelet_runs = False
            await setup.lost_heartbeat()
            await until(lambda: setup.requests(SERVICES) == 3)  # watched again, now shortly
            assert setup.requests(LEASES) <= 4, "asked once"
            setup.kubelet_runs = True
            await setup.has_heartbeat()

    await undisturbed(0.5, attempt)
    assert lines == []


@pytest.mark.parametrize("why", ["none", "forbidden"])
async def test_without_the_lease_watches_are_short(why: str, tmp_path: Path) -> None:
    async with set_up(tmp_path) as setup:
        await setup.has_heartbeat()
        setup.kubelet_runs = False
        if why == "none":
            await setup.fake.delete(f"{LEASES}/n")
        else:
            await setup.fake.forbid(LEASES)
        await setup.lost_heartbeat()
        assert setup.health.seconds(WATCH_SECONDS, SHORT_SECONDS) == SHORT_SECONDS


async def test_a_lost_question_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is as dead as those of the watches."""
    monkeypatch.setattr(heartbeat, "ANSWER_SECONDS", 0.2)
    async with set_up(tmp_path) as setup:
        await setup.has_heartbeat()
        setup.fake.silence = Silence.MUTE
        setup.fake.losing = 1
        await until(lambda: setup.health.stalled)
        assert setup.fake.losing == 0


async def test_an_api_server_that_is_away_is_no_stalled_watch(tmp_path: Path) -> None:
    async with set_up(tmp_path) as setup:
        await setup.has_heartbeat()
        setup.fake.silence = Silence.MUTE
        setup.fake.putting_off = 3
        seen = setup.requests(LEASES)
        await until(lambda: setup.requests(LEASES) > seen)
        assert not setup.health.stalled
        await until(lambda: setup.health.stalled)  # asked again once it answers
