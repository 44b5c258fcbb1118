"""The leader against an API server over HTTP: one leads, it writes seldom, and nothing is lost or grows."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from policies.core.facts import NoCluster
from policies.kube.json import Json
from tests.webhook.kube.apiserver import FakeApiServer, running, until
from webhook.admission.configuration import Config
from webhook.config.load import load
from webhook.kube.api import ApiServer
from webhook.kube.watch_health import WatchHealth
from webhook.observed.collector import (
    LONGEST_PAUSE,
    MOST_PENDING,
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
OBSERVED = f"/api/v1/namespaces/{NAMESPACE}/configmaps/mlchassis-observed"
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


@asynccontextmanager
async def connected(tmp_path: Path) -> AsyncIterator[tuple[FakeApiServer, ApiServer]]:
    async with running() as fake, ApiServer.connect(fake.kubeconfig(tmp_path)) as api:
        yield fake, api


@asynccontextmanager
async def collecting(
    api: ApiServer,
    time: Time,
    config: Callable[[], Config] = lambda: CONFIG,
    leads: Callable[[], bool] = lambda: True,
    models: ModelEvents | None = None,
) -> AsyncIterator[None]:
    models = ModelEvents(api, config, NoCluster()) if models is None else models
    collector = Collector(
        *(api, NAMESPACE, leads, config, NoCluster(), WatchHealth(), models),
        clock=time.clock,
        sleep=time.sleep,
    )
    task = asyncio.create_task(collector.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def ready(
    fake: FakeApiServer, api: ApiServer, name: str, load: int = 30, ahead: int = 100, node: str = "node"
) -> None:
    """A pod whose server became ready `load` seconds after its start, which is `ahead` seconds from now."""
    began = api.now() + ahead
    probe = {"httpGet": {"path": "/health", "port": 8000}}
    pod: Json = {
        "metadata": {"name": name, "namespace": "ml", "uid": name, "generateName": "llm-"},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "server", "image": "vllm/vllm-openai:v0.9.1", "startupProbe": probe}],
        },
        "status": {
            "conditions": [
                {"type": "ContainersReady", "status": "True", "lastTransitionTime": stamp(began + load)}
            ],
            "containerStatuses": [
                {
                    "name": "server",
                    "containerID": name,
                    "ready": True,
                    "started": True,
                    "state": {"running": {"startedAt": stamp(began)}},
                }
            ],
        },
    }
    await fake.put(PODS, pod)


def starts(fake: FakeApiServer) -> int:
    data = fake.objects.get(OBSERVED, {}).get("data", {})
    return sum(entry["starts"] for text in data.values() for entry in json.loads(text).values())


def loads(fake: FakeApiServer) -> set[int]:
    """The load times in the record."""
    entries = json.loads(fake.objects[OBSERVED]["data"]["ml"]).values()
    return {load for entry in entries for times in entry["nodes"].values() for load in times["load"]}


def writes(fake: FakeApiServer) -> int:
    return sum(path.startswith(OBSERVED.rpartition("/")[0]) and verb != "GET" for verb, path in fake.requests)


async def test_starts_are_written_at_most_once_a_minute(tmp_path: Path) -> None:
    time = Time()
    async with connected(tmp_path) as (fake, api), collecting(api, time):
        for number in range(20):
            await ready(fake, api, f"llm-{number}")
            await until(lambda: time.now > 10 * number)  # noqa: B023
        await until(lambda: starts(fake) == 20)
        assert writes(fake) <= time.now / WRITE_SECONDS + 1
        [entry] = json.loads(fake.objects[OBSERVED]["data"]["ml"]).values()
        assert entry["basis"] == [30, 20]
        before = writes(fake)
        later = time.now + 4 * WRITE_SECONDS
        await until(lambda: time.now > later)
        assert writes(fake) == before, "nothing new, nothing written"


async def test_the_api_server_sends_pods_only_once_they_have_a_node(tmp_path: Path) -> None:
    time = Time()
    async with connected(tmp_path) as (fake, api), collecting(api, time):
        await ready(fake, api, "a", load=10, node="")
        await ready(fake, api, "b", load=20)
        await until(lambda: starts(fake) == 1)
        assert loads(fake) == {20}
        await ready(fake, api, "a", load=10)
        await until(lambda: starts(fake) == 2)
        assert loads(fake) == {10, 20}


async def test_the_record_comes_back_when_it_was_deleted_and_survives_garbage(tmp_path: Path) -> None:
    time = Time()
    async with connected(tmp_path) as (fake, api), collecting(api, time):
        await ready(fake, api, "a")
        await until(lambda: starts(fake) == 1)
        await fake.delete(OBSERVED)
        await ready(fake, api, "b")
        await until(lambda: starts(fake) == 2)
        spoilt = {**fake.objects[OBSERVED], "data": {"ml": "{{", "x": "[]", "y": "\x00"}}
        await fake.put(OBSERVED.rpartition("/")[0], spoilt)
        await ready(fake, api, "c")
        await until(lambda: fake.objects[OBSERVED]["data"].get("ml") != "{{")
        assert starts(fake) == 3
        assert fake.objects[OBSERVED]["data"].keys() == {"ml"}


async def test_an_api_server_that_refuses_is_asked_more_and_more_rarely(tmp_path: Path) -> None:
    time = Time()
    async with connected(tmp_path) as (fake, api), collecting(api, time):
        await ready(fake, api, "a")
        await until(lambda: starts(fake) == 1)
        fake.forbidden = {OBSERVED.rpartition("/")[0]}
        asked = len(fake.requests)
        await ready(fake, api, "b")

        def tries() -> int:
            return sum(path == OBSERVED for _, path in fake.requests[asked:])

        await until(lambda: tries() == 1, 60)
        began = time.now
        await until(lambda: time.now - began > 2 * LONGEST_PAUSE, 60)
        assert 2 <= tries() <= 7, "a write a minute would be 30"
        fake.forbidden = set()
        await until(lambda: starts(fake) == 2, 60)


async def test_calls_that_the_api_server_puts_off_are_made_later(tmp_path: Path) -> None:
    time = Time()
    async with connected(tmp_path) as (fake, api), collecting(api, time):
        await ready(fake, api, "a")
        await until(lambda: starts(fake) == 1)
        fake.putting_off = 6
        asked = len(fake.requests)
        await ready(fake, api, "b", load=40)
        await until(lambda: 40 in loads(fake), 30)
        assert fake.putting_off == 0
        # Two calls for the record a minute, and the lists and watches.
        assert len(fake.requests) - asked <= 30 + time.now / 20


async def test_two_leaders_for_a_moment_lose_no_start(tmp_path: Path) -> None:
    """Each write of theirs is compare-and-swap: starts may be counted twice, never lost."""
    one, two = Time(), Time()
    async with connected(tmp_path) as (fake, api), collecting(api, one), collecting(api, two):
        for number in range(5):
            await ready(fake, api, f"llm-{number}", load=30 + number)
            later = max(one.now, two.now) + WRITE_SECONDS
            await until(lambda: min(one.now, two.now) > later)  # noqa: B023
        await until(lambda: starts(fake) == 10)
        assert loads(fake) == {30, 31, 32, 33, 34}


async def test_one_leads_and_the_next_one_counts_what_was_missed_once(tmp_path: Path) -> None:
    time = Time()
    async with connected(tmp_path) as (fake, api):
        async with collecting(api, time):
            await ready(fake, api, "a")
            await until(lambda: starts(fake) == 1)
        written = fake.objects[OBSERVED]
        assert int(written["metadata"]["annotations"]["mlchassis.dev/observed-until"]) <= api.now()
        until_then = {"mlchassis.dev/observed-until": str(int(api.now()) - 500)}
        await fake.put(
            OBSERVED.rpartition("/")[0],
            {**written, "metadata": {**written["metadata"], "annotations": until_then}},
        )
        await ready(fake, api, "a", ahead=-600)
        await ready(fake, api, "b", ahead=-400)
        other, leads = Time(), [False]
        async with collecting(api, other, leads=lambda: leads[0]):
            asked = len(fake.requests)
            await until(lambda: other.now > 100)
            assert len(fake.requests) == asked, "another one leads"
            leads[0] = True
            await until(lambda: starts(fake) == 2)
            leads[0] = False
            later = other.now + 100
            await until(lambda: other.now > later)
            await ready(fake, api, "c")
            later = other.now + 3 * WRITE_SECONDS
            await until(lambda: other.now > later)
            assert starts(fake) == 2, "it does not lead any more"


async def test_nothing_is_read_while_learning_is_off(tmp_path: Path) -> None:
    time, config = Time(), [OFF]
    async with connected(tmp_path) as (fake, api), collecting(api, time, config=lambda: config[0]):
        await until(lambda: time.now > 100)
        assert fake.requests == []
        config[0] = CONFIG
        await ready(fake, api, "a")
        await until(lambda: starts(fake) == 1)
        config[0] = OFF
        later = time.now + 100
        await until(lambda: time.now > later)
        await ready(fake, api, "b")
        later = time.now + 3 * WRITE_SECONDS
        await until(lambda: time.now > later)
        assert starts(fake) == 1


def test_a_namespace_with_a_burst_loses_its_own_oldest_starts() -> None:
    pending = Pending()
    for namespace, count in (("quiet", 3), ("burst", MOST_PENDING), ("late", 2)):
        pending.add(Observation(namespace, "key", at, "") for at in range(count))
    assert len(pending) == MOST_PENDING
    taken = pending.take()
    assert Counter(each.namespace for each in taken) == {"quiet": 3, "burst": MOST_PENDING - 5, "late": 2}
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
async def test_only_the_leader_shows_pods_to_the_events_about_models(tmp_path: Path, learning: str) -> None:
    time, config = Time(), load({"standard-probes.yaml": f"learning: '{learning}'"})
    puller: Json = {"name": "puller", "command": ["chassis-puller"]}
    pod: Json = {
        "metadata": {"name": "llm", "namespace": "ml", "uid": "1"},
        "spec": {"nodeName": "node", "containers": [puller]},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    }
    async with connected(tmp_path) as (fake, api):
        models = ModelEvents(api, lambda: config, NoCluster(), clock=time.clock, sleep=time.sleep)
        async with collecting(api, time, lambda: config, models=models):
            await fake.put(PODS, pod)
            await until(lambda: len(models) == 1)
            await fake.delete(f"{PODS}/llm")
            await until(lambda: len(models) == 0)
            await fake.put(PODS, pod)
            await until(lambda: len(models) == 1)
        assert len(models) == 0
