"""The leader against an API server over HTTP: one leads, it writes seldom, and nothing is lost or grows."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from policies.core.facts import NoCluster
from policies.kube.json import Json
from tests.manifests import manifest
from tests.webhook.kube.apiserver import FakeApiServer, until
from webhook.admission.configuration import Config
from webhook.config.load import load
from webhook.kube.api import ApiServer
from webhook.observed.collector import (
    MAX_PAUSE,
    MAX_PENDING,
    WRITE_SECONDS,
    Collector,
    Pending,
    PodSink,
)
from webhook.observed.model_events import ModelEvents
from webhook.observed.pods import PodTracker
from webhook.observed.record import Observation

NAMESPACE = "mlchassis-system"
PODS = "/api/v1/namespaces/ml/pods"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
OBSERVED = f"{CONFIG_MAPS}/mlchassis-observed"
RUNNING = {"phase": "Running", "podIP": "10.0.0.1"}
WITHOUT_EVENTS = {"model-puller.yaml": "events: false"}
CONFIG = load(WITHOUT_EVENTS)
OFF = load({**WITHOUT_EVENTS, "standard-probes.yaml": "learning: off"})


class Time:
    """A clock that each sleep moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0.002)

    async def passes(self, seconds: float) -> None:
        end = self.now + seconds
        await until(lambda: self.now > end)


@dataclass
class Setup:
    """An API server, and collectors that write to it."""

    fake: FakeApiServer
    api: ApiServer
    time: Time = field(default_factory=Time)
    config: Config = CONFIG
    leads: bool = True

    @asynccontextmanager
    async def collecting(
        self, time: Time | None = None, models: ModelEvents | None = None
    ) -> AsyncIterator[None]:
        time = time or self.time
        models = ModelEvents(self.api, lambda: self.config, NoCluster()) if models is None else models
        collector = Collector(
            *(self.api, NAMESPACE, lambda: self.leads, lambda: self.config),
            *(NoCluster(), models),
            clock=time.clock,
            sleep=time.sleep,
        )
        task = asyncio.create_task(collector.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def ready(self, name: str, load: int = 30, ahead: int = 100, node: str = "node") -> None:
        """A pod whose server starts `ahead` seconds from now and is ready `load` seconds later."""
        began = self.api.now() + ahead
        probe = {"httpGet": {"path": "/health", "port": 8000}}
        container = {"name": "server", "image": "vllm/vllm-openai:v0.9.1", "startupProbe": probe}
        status = {"name": "server", "containerID": name, "ready": True, "started": True}
        status["state"] = {"running": {"startedAt": stamp(began)}}
        condition = {"type": "ContainersReady", "status": "True", "lastTransitionTime": stamp(began + load)}
        pod = {
            "metadata": {"name": name, "namespace": "ml", "uid": name, "generateName": "llm-"},
            "spec": {"nodeName": node, "containers": [container]},
            "status": {"conditions": [condition], "containerStatuses": [status]},
        }
        await self.fake.put(PODS, pod)

    def entries(self) -> list[Json]:
        data = self.fake.objects.get(OBSERVED, {}).get("data", {})
        return [entry for text in data.values() for entry in json.loads(text).values()]

    async def has_starts(self, count: int) -> None:
        await until(lambda: sum(entry["starts"] for entry in self.entries()) == count)

    def loads(self) -> set[int]:
        """The load times in the record."""
        nodes = (times for entry in self.entries() for times in entry["nodes"].values())
        return {load for times in nodes for load in times["load"]}

    def writes(self) -> int:
        return sum(path.startswith(CONFIG_MAPS) and verb != "GET" for verb, path in self.fake.requests)


@pytest.fixture
def setup(fake: FakeApiServer, api: ApiServer) -> Setup:
    return Setup(fake, api)


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def test_starts_are_written_at_most_once_a_minute(setup: Setup) -> None:
    async with setup.collecting():
        for number in range(20):
            await setup.ready(f"llm-{number}")
            await setup.time.passes(10)
        await setup.has_starts(20)
        assert setup.writes() <= setup.time.now / WRITE_SECONDS + 1
        [entry] = setup.entries()
        assert entry["basis"] == [30, 20]
        before = setup.writes()
        await setup.time.passes(4 * WRITE_SECONDS)
        assert setup.writes() == before, "nothing new, nothing written"


async def test_the_api_server_sends_pods_only_once_they_have_a_node(setup: Setup) -> None:
    async with setup.collecting():
        await setup.ready("a", load=10, node="")
        await setup.ready("b", load=20)
        await setup.has_starts(1)
        assert setup.loads() == {20}
        await setup.ready("a", load=10)
        await setup.has_starts(2)
        assert setup.loads() == {10, 20}


async def test_the_record_comes_back_when_it_was_deleted_and_survives_garbage(setup: Setup) -> None:
    async with setup.collecting():
        await setup.ready("a")
        await setup.has_starts(1)
        await setup.fake.delete(OBSERVED)
        await setup.ready("b")
        await setup.has_starts(2)
        malformed = {**setup.fake.objects[OBSERVED], "data": {"ml": "{{", "x": "[]", "y": "\x00"}}
        await setup.fake.put(CONFIG_MAPS, malformed)
        await setup.ready("c")
        await until(lambda: setup.fake.objects[OBSERVED]["data"].get("ml") != "{{")
        await setup.has_starts(3)
        assert setup.fake.objects[OBSERVED]["data"].keys() == {"ml"}


async def test_after_errors_the_pauses_between_writes_grow(setup: Setup) -> None:
    async with setup.collecting():
        await setup.ready("a")
        await setup.has_starts(1)
        setup.fake.forbidden = {CONFIG_MAPS}
        asked = len(setup.fake.requests)
        await setup.ready("b")

        def tries() -> int:
            return sum(path == OBSERVED for _, path in setup.fake.requests[asked:])

        await until(lambda: tries() == 1)
        await setup.time.passes(2 * MAX_PAUSE)
        assert 2 <= tries() <= 7, "a write a minute would be 30"
        setup.fake.forbidden = set()
        await setup.has_starts(2)


async def test_two_leaders_for_a_moment_lose_no_start(setup: Setup) -> None:
    """Each write of theirs is compare-and-swap: starts may be counted twice, never lost."""
    one, two = Time(), Time()
    async with setup.collecting(one), setup.collecting(two):
        for number in range(5):
            await setup.ready(f"llm-{number}", load=30 + number)
            later = max(one.now, two.now) + WRITE_SECONDS
            await until(lambda: min(one.now, two.now) > later)  # noqa: B023
        await setup.has_starts(10)
        assert setup.loads() == {30, 31, 32, 33, 34}


async def test_one_leads_and_the_next_one_counts_missed_starts_once(setup: Setup) -> None:
    async with setup.collecting():
        await setup.ready("a")
        await setup.has_starts(1)
    written = setup.fake.objects[OBSERVED]
    assert int(written["metadata"]["annotations"]["mlchassis.dev/observed-until"]) <= setup.api.now()
    until_then = {"mlchassis.dev/observed-until": str(int(setup.api.now()) - 500)}
    metadata = {**written["metadata"], "annotations": until_then}
    await setup.fake.put(CONFIG_MAPS, {**written, "metadata": metadata})
    await setup.ready("a", ahead=-600)
    await setup.ready("b", ahead=-400)
    setup.leads = False
    async with setup.collecting():
        asked = len(setup.fake.requests)
        await setup.time.passes(100)
        assert len(setup.fake.requests) == asked, "another one leads"
        setup.leads = True
        await setup.has_starts(2)
        setup.leads = False
        await setup.time.passes(100)
        await setup.ready("c")
        await setup.time.passes(3 * WRITE_SECONDS)
        await setup.has_starts(2)


async def test_nothing_is_read_while_learning_is_off(setup: Setup) -> None:
    setup.config = OFF
    async with setup.collecting():
        await setup.time.passes(100)
        assert setup.fake.requests == []
        setup.config = CONFIG
        await setup.ready("a")
        await setup.has_starts(1)
        setup.config = OFF
        await setup.time.passes(100)
        await setup.ready("b")
        await setup.time.passes(3 * WRITE_SECONDS)
        await setup.has_starts(1)


def test_a_namespace_with_a_burst_loses_its_own_oldest_starts() -> None:
    pending = Pending()
    for namespace, count in (("quiet", 3), ("burst", MAX_PENDING), ("late", 2)):
        pending.add(Observation(namespace, "key", at, "") for at in range(count))
    assert len(pending) == MAX_PENDING
    taken = pending.take()
    assert Counter(each.namespace for each in taken) == {"quiet": 3, "burst": MAX_PENDING - 5, "late": 2}
    assert min(each.at for each in taken if each.namespace == "burst") == 5
    assert (len(pending), pending.take()) == (0, [])


class _NoWrites:
    async def unless_conflict(self, method: str, path: str, body: Json, content_type: str = "") -> bool:
        raise AssertionError(path)


def test_a_pod_that_cannot_be_read_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def see(self: PodTracker, pod: Json) -> list[Observation]:
        if pod["metadata"]["uid"] == "bad":
            raise ValueError("a bug")
        seen.append(pod["metadata"]["uid"])
        return []

    monkeypatch.setattr(PodTracker, "observe", see)
    models = ModelEvents(_NoWrites(), lambda: CONFIG, NoCluster())
    sink = PodSink(PodTracker(lambda: CONFIG, NoCluster(), 0), Pending(), models)
    for uid in ("a", "bad", "bad", "b"):
        sink.put({"metadata": {"uid": uid}})
    sink.remove({"metadata": {"uid": "bad"}})
    assert seen == ["a", "b"]


@pytest.mark.parametrize("learning", ["on", "off"])
async def test_only_the_leader_shows_pods_to_the_events_about_models(setup: Setup, learning: str) -> None:
    setup.config = load({"standard-probes.yaml": f"learning: '{learning}'"})
    spec = {"nodeName": "node", "containers": [{"name": "puller", "command": ["chassis-puller"]}]}
    pod = {**manifest("Pod", "llm", spec, namespace="ml", uid="1"), "status": RUNNING}
    time = setup.time
    models = ModelEvents(setup.api, lambda: setup.config, NoCluster(), clock=time.clock, sleep=time.sleep)
    async with setup.collecting(models=models):
        await setup.fake.put(PODS, pod)
        await until(lambda: len(models) == 1)
        await setup.fake.delete(f"{PODS}/llm")
        await until(lambda: len(models) == 0)
        await setup.fake.put(PODS, pod)
        await until(lambda: len(models) == 1)
    assert len(models) == 0
