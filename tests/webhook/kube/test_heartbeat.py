"""The Lease of the webhook's node shows whether watches bring what happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
from structlog.typing import EventDict

from policies.core.resources import Resource, resource_kinds
from tests.steady import undisturbed
from tests.webhook.kube.apiserver import FakeApiServer, Silence, running, until
from webhook.kube import api as cluster
from webhook.kube import heartbeat, reflector, watch_health
from webhook.kube.api import WATCH_SECONDS, ApiServer
from webhook.kube.caches import Store
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


class Kubelet:
    """Renews the Lease of a node, until it is stopped."""

    def __init__(self, fake: FakeApiServer) -> None:
        self._fake = fake
        self.runs = True

    async def run(self) -> None:
        while True:
            if self.runs:
                await self._fake.put(LEASES, {"metadata": {"name": "n", "namespace": "kube-node-lease"}})
            await asyncio.sleep(BEAT)


class Setup:
    """A fake API server, a watch of Services, and the heartbeat of the node `n`."""

    def __init__(self, fake: FakeApiServer, api: ApiServer) -> None:
        self.fake, self.kubelet, self.health = fake, Kubelet(fake), WatchHealth()
        self.services = Store(
            next(known for known in resource_kinds() if known.resource is Resource.SERVICES)
        )
        self.works = [
            Reflector(api, SERVICES, self.services, watch_seconds=SHORT_SECONDS, health=self.health).run(),
            Heartbeat(api, "n", self.health).run(),
            self.kubelet.run(),
        ]

    async def put_service(self, name: str) -> None:
        await self.fake.put("/api/v1/namespaces/ml/services", {"metadata": {"name": name, "namespace": "ml"}})

    def requests(self, path: str) -> int:
        return [each for _, each in self.fake.requests].count(path)


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
async def test_what_silent_watches_hide_is_found(
    silence: Silence, tmp_path: Path, lines: list[EventDict]
) -> None:
    async with set_up(tmp_path) as setup:
        await until(lambda: setup.health.has_heartbeat)
        setup.fake.silence = silence
        await setup.put_service("a")
        await until(lambda: len(setup.services) == 1)
        setup.fake.silence = None
        await until(lambda: setup.health.has_heartbeat and not setup.health.stalled)
    events = [line["event"] for line in lines]
    assert events[0] == "watches are stalled, restarting them"
    assert events[-1] == "watches deliver events again"


async def test_watches_that_bring_what_happens_stay_open(tmp_path: Path, lines: list[EventDict]) -> None:
    async def attempt() -> None:
        async with set_up(tmp_path) as setup:
            beats = setup.fake.version + 40  # two seconds, twice the limit
            await until(lambda: setup.fake.version >= beats)
            assert (setup.health.has_heartbeat, setup.health.stalled) == (True, False)
            assert setup.requests(SERVICES) == setup.requests(LEASES) == 2, "one list, one watch"

    await undisturbed(0.5, attempt)
    assert lines == []


async def test_a_late_kubelet_is_no_silent_watch(tmp_path: Path, lines: list[EventDict]) -> None:
    async def attempt() -> None:
        async with set_up(tmp_path) as setup:
            await until(lambda: setup.health.has_heartbeat)
            setup.kubelet.runs = False
            await until(lambda: not setup.health.has_heartbeat)
            assert not setup.health.stalled
            await until(lambda: setup.requests(SERVICES) == 3)  # watched again, now shortly
            assert setup.requests(LEASES) <= 4, "asked once"
            setup.kubelet.runs = True
            await until(lambda: setup.health.has_heartbeat)

    await undisturbed(0.5, attempt)
    assert lines == []


@pytest.mark.parametrize("why", ["none", "forbidden"])
async def test_without_the_lease_watches_are_short(why: str, tmp_path: Path) -> None:
    async with set_up(tmp_path) as setup:
        await until(lambda: setup.health.has_heartbeat)
        setup.kubelet.runs = False
        if why == "none":
            await setup.fake.delete(f"{LEASES}/n")
        else:
            await setup.fake.forbid(LEASES)
        await until(lambda: not setup.health.has_heartbeat)
        assert not setup.health.stalled
        assert setup.health.seconds(WATCH_SECONDS, SHORT_SECONDS) == SHORT_SECONDS


async def test_a_question_that_is_lost_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection that it went over is as dead as those of the watches."""
    monkeypatch.setattr(heartbeat, "ANSWER_SECONDS", 0.2)
    async with set_up(tmp_path) as setup:
        await until(lambda: setup.health.has_heartbeat)
        setup.fake.silence = Silence.MUTE
        setup.fake.losing = 1
        await until(lambda: setup.health.stalled)
        assert setup.fake.losing == 0


async def test_an_api_server_that_is_away_is_no_silent_watch(tmp_path: Path) -> None:
    async with set_up(tmp_path) as setup:
        await until(lambda: setup.health.has_heartbeat)
        setup.fake.silence = Silence.MUTE
        setup.fake.putting_off = 3
        seen = setup.requests(LEASES)
        await until(lambda: setup.requests(LEASES) > seen)
        assert not setup.health.stalled
        await until(lambda: setup.health.stalled)  # asked again once it answers
