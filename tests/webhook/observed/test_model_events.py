"""Events about models that fail: what they contain, and what pods can make the leader do at most."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from policies.core.facts import NoCluster
from policies.kube.json import Json
from tests.manifests import manifest
from webhook.admission.configuration import Config
from webhook.config.load import load
from webhook.kube.calls import ApiError
from webhook.observed import model_events
from webhook.observed.model_events import (
    CONCURRENT_REQUESTS,
    FAILED,
    LOADING_SECONDS,
    RECOVERED,
    RENEW_SECONDS,
    UNREACHABLE_SECONDS,
    ModelEvents,
)
from webhook.observed.status_pages import GetStatus, NoStatus, Page, Unloaded


def pod(name: str, namespace: str = "ml", **status: object) -> Json:
    puller = {"name": "model-puller", "command": ["chassis-puller"], "args": ["--port=9999"]}
    spec = {"initContainers": [puller], "containers": [{"name": "server"}]}
    made = manifest("Pod", name, spec, namespace=namespace, uid=f"{namespace}/{name}")
    return {**made, "status": {"phase": "Running", "podIP": f"{namespace}/{name}", **status}}


def failed(*names: str, reason: str = "NotFound", total: int = 40, state: str = "Failed") -> Page:
    unloaded = tuple(Unloaded(name, state, reason, "nothing there") for name in names)
    return Page(total, total - len(unloaded), unloaded)


WELL = Page(40, 40, ())


@dataclass
class Setting:
    """An API server that counts, pods that answer as told, and a clock that each sleep moves."""

    config: Config = field(default_factory=lambda: load({}))
    pages: dict[str, Page] = field(default_factory=dict)
    """By address; others do not answer."""
    now: float = 0.0
    asks: list[tuple[float, str, int]] = field(default_factory=list)
    writes: list[float] = field(default_factory=list)
    events: dict[str, Json] = field(default_factory=dict)
    refuses: ApiError | None = None
    at_once: int = 0
    most_at_once: int = 0
    answer_takes: float = 0.0

    def __post_init__(self) -> None:
        config, clock = (lambda: self.config), (lambda: self.now)
        self.models = ModelEvents(
            self, config, NoCluster(), clock=clock, sleep=self.sleep, client=self.client
        )
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self._sleepers.append((self.now + seconds, woken))
        await woken.wait()

    async def unless_conflict(self, method: str, path: str, body: Json, content_type: str = "") -> bool:
        self.writes.append(self.now)
        if self.refuses is not None:
            raise self.refuses
        name = body["metadata"]["name"] if method == "POST" else path.rpartition("/")[2]
        if (method == "POST") is (name in self.events):
            return False
        self.events[name] = {**self.events.get(name, {}), **body}
        return True

    @asynccontextmanager
    async def client(self, connections: int) -> AsyncIterator[GetStatus]:
        async def ask(address: str, port: int) -> Page:
            self.asks.append((self.now, address, port))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            try:
                if self.answer_takes:
                    await self.sleep(self.answer_takes)
                if address not in self.pages:
                    raise NoStatus("timed out")
                return self.pages[address]
            finally:
                self.at_once -= 1

        yield ask

    def put(self, name: str, page: Page | None = None, namespace: str = "ml") -> None:
        if page is not None:
            self.pages[f"{namespace}/{name}"] = page
        self.models.put(pod(name, namespace))

    async def pass_(self, seconds: float) -> None:
        """Let the time pass, sleep by sleep."""
        end = self.now + seconds
        while True:
            for _ in range(6):  # until every task waits for the clock
                await asyncio.sleep(0)
            self._sleepers.sort(key=lambda each: each[0])
            if not self._sleepers or self._sleepers[0][0] > end:
                break
            at, woken = self._sleepers.pop(0)
            self.now = max(self.now, at)
            woken.set()
        self.now = end

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.models.run())
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def messages(self, reason: str = FAILED) -> list[str]:
        return [event["message"] for event in self.events.values() if event["reason"] == reason]


@pytest.fixture
def setting() -> Setting:
    return Setting()


async def test_the_models_that_fail_and_why_are_an_event_on_the_pod(setting: Setting) -> None:
    async with setting.running():
        setting.put("llm-0", failed("a", "b"))
        await setting.pass_(15)
    (event,) = setting.events.values()
    identity = {"namespace": "ml", "name": "llm-0", "uid": "ml/llm-0"}
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Pod", **identity}
    assert (event["type"], event["reason"]) == ("Warning", "ModelsFailed")
    assert event["message"] == (
        "2 of 40 models failed: a: NotFound: nothing there; b: NotFound: nothing there"
    )
    assert [port for _, _, port in setting.asks] == [9999]


async def test_the_same_failures_are_one_event_and_a_retry_changes_nothing(setting: Setting) -> None:
    async with setting.running():
        setting.put("llm-0", failed("a"))
        await setting.pass_(15)
        for page in (failed("a", state="Downloading", reason=""), failed("a")) * 5:
            setting.pages["ml/llm-0"] = page
            await setting.pass_(LOADING_SECONDS)
    assert len(setting.writes) == 1


async def test_an_event_that_is_still_true_is_renewed(setting: Setting) -> None:
    async with setting.running():
        setting.put("llm-0", failed("a"))
        await setting.pass_(2 * RENEW_SECONDS + 5 * LOADING_SECONDS)
    assert len(setting.events) == 1
    assert len(setting.writes) == 1 + 2 * 2, "a create that meets its own Event, and its patch"


async def test_the_end_of_all_failures_is_an_event(setting: Setting) -> None:
    async with setting.running():
        setting.put("llm-0", failed("a"))
        setting.put("other", WELL)
        await setting.pass_(15)
        setting.pages["ml/llm-0"] = WELL
        await setting.pass_(LOADING_SECONDS + 15)
        assert setting.messages(RECOVERED) == ["No model fails any longer: 40 of 40 are loaded"]
        before = len(setting.writes)
        await setting.pass_(RENEW_SECONDS)
        assert len(setting.writes) == before


BARE = pod("bare")
BARE["spec"]["initContainers"] = [{"name": "model-puller", "image": "chassis-puller", "command": ["sh"]}]
LEAVING = pod("leaving")
LEAVING["metadata"]["deletionTimestamp"] = "x"
NO_EVENTS = "overrides: [{namespaces: [ml], settings: {model-puller: {events: false}}}]"


@pytest.mark.parametrize(
    ("item", "policy"),
    [
        (BARE, {}),
        (LEAVING, {}),
        (pod("pending", phase="Pending"), {}),
        (pod("done", phase="Succeeded"), {}),
        (pod("homeless", podIP=""), {}),
        (pod("system", "kube-system"), {}),
        ({}, {}),
        (pod("llm"), {"model-puller.yaml": "events: false"}),
        (pod("llm"), {"model-puller.yaml": "mode: 'off'"}),
        (pod("llm"), {"webhook.yaml": NO_EVENTS}),
    ],
)
async def test_only_running_pods_with_a_puller_are_requested(item: Json, policy: dict[str, str]) -> None:
    setting = Setting(load(policy))
    async with setting.running():
        setting.models.put(item)
        await setting.pass_(600)
    assert setting.asks == []


async def test_a_pod_that_is_not_in_the_next_list_is_forgotten(setting: Setting) -> None:
    async with setting.running():
        setting.put("a", failed("m"))
        setting.put("b", failed("m"))
        setting.put("c", failed("m"))
        setting.models.forget("ml/c")
        setting.models.keep_only({"ml/b"})
        await setting.pass_(15)
        setting.models.clear()
        before = len(setting.asks)
        await setting.pass_(600)
    assert {address for _, address, _ in setting.asks} == {"ml/b"}
    assert len(setting.asks) == before


# --- bounds ------------------------------------------------------------------------------------------


def most_in(seconds: float, times: list[float]) -> int:
    """The most in any window of so many seconds."""
    return max(sum(start <= each < start + seconds for each in times) for start in times)


async def test_5000_models_that_fail_cost_less_than_a_write_a_second(setting: Setting) -> None:
    """Each in a pod of its own, and with another reason at every question."""
    async with setting.running():
        for number in range(5_000):
            setting.put(f"p{number}", failed("m", total=1), namespace=f"ns{number % 50}")
        for turn in range(6):
            await setting.pass_(50)
            for address in setting.pages:
                setting.pages[address] = failed("m", total=1, reason=f"Reason{turn}")
    assert 150 < len(setting.writes) <= 300
    assert most_in(10, setting.writes) <= 10
    assert (
        most_in(60, [at for at, _, _ in setting.asks])
        <= model_events.REQUESTS_PER_MINUTE + CONCURRENT_REQUESTS
    )


async def test_a_namespace_full_of_failures_does_not_keep_others_waiting(setting: Setting) -> None:
    async with setting.running():
        for number in range(1_000):
            setting.put(f"p{number}", failed("m"), namespace="loud")
        setting.put("quiet", failed("m"))
        await setting.pass_(180)
    assert any(event["metadata"]["namespace"] == "ml" for event in setting.events.values())


@pytest.mark.parametrize(("answer", "seconds"), [(None, 3 * 3600), (WELL, 60)])
async def test_slow_pods_are_requested_few_at_a_time_and_rarely(
    setting: Setting, answer: Page | None, seconds: int
) -> None:
    setting.answer_takes = 3.0
    async with setting.running():
        for number in range(50):
            setting.put(f"p{number}", answer)
        await setting.pass_(seconds)
    assert setting.most_at_once == CONCURRENT_REQUESTS
    requests = Counter(address for _, address, _ in setting.asks)
    assert max(requests.values()) <= 6 + seconds / (0.8 * UNREACHABLE_SECONDS)
    assert not setting.writes


async def test_a_message_is_no_longer_than_an_event_takes(setting: Setting) -> None:
    many = tuple(Unloaded("n" * 250 + str(number), "Failed", "R" * 40, "m" * 300) for number in range(50))
    async with setting.running():
        setting.put("llm-0", Page(5_000, 0, many))
        await setting.pass_(15)
    (message,) = setting.messages()
    assert len(message) <= 1024
    assert message.startswith("50 of 5000 models failed: nnn")
    assert message.endswith("; and 45 more")


# --- faults ------------------------------------------------------------------------------------------


async def test_a_missing_right_ends_it(setting: Setting) -> None:
    setting.refuses = ApiError(403, "Forbidden", 'events is forbidden: User "mlchassis" cannot create')
    async with setting.running():
        setting.put("llm-0", failed("a"))
        await setting.pass_(15)
        asked = len(setting.asks)
        await setting.pass_(3600)
    assert len(setting.writes) == 1
    assert len(setting.asks) == asked
    assert not setting.models.enabled


@pytest.mark.parametrize("status", [0, 429, 500])
async def test_an_api_server_that_puts_calls_off_gets_the_event_later(setting: Setting, status: int) -> None:
    setting.refuses = ApiError(status, "TooManyRequests", "later")
    async with setting.running():
        setting.put("llm-0", failed("a"))
        setting.put("llm-1", failed("a"))
        await setting.pass_(600)
        assert 2 < len(setting.writes) < 20
        setting.refuses = None
        await setting.pass_(2 * LOADING_SECONDS + 60)
    assert len(setting.messages()) == 2


async def test_work_that_was_cut_off_is_done_by_the_next_run(setting: Setting) -> None:
    setting.answer_takes = 3.0
    async with setting.running():
        setting.put("llm-0", failed("a"))
        await setting.pass_(2)
        assert (len(setting.asks), setting.messages()) == (1, [])
    async with setting.running():
        await setting.pass_(15)
    assert len(setting.messages()) == 1


async def test_a_bug_about_one_pod_does_not_stop_the_others(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = setting.models._in_scope

    def broken(one: model_events._Pod) -> bool:
        if one.name == "bad":
            raise KeyError("a bug")
        return wanted(one)

    monkeypatch.setattr(setting.models, "_in_scope", broken)
    async with setting.running():
        setting.put("bad", failed("a"))
        setting.put("good", failed("a"))
        await setting.pass_(15)
    assert len(setting.messages()) == 1
