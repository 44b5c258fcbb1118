"""Events on owners of unknown kinds: about pods that there are, within every bound, and about nobody else."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from policies.core.facts import NoCluster
from policies.kube.group_kinds import POD
from policies.kube.json import Json
from tests.manifests import manifest
from tests.webhook.kube.apiserver import FakeApiServer, until
from webhook.admission import engine
from webhook.admission.envelope import Request
from webhook.config.load import load
from webhook.fast_path.memo import Memo
from webhook.kube import owner_events
from webhook.kube.api import ApiServer
from webhook.kube.owner_events import OwnerEvents

RULE = "liveness-external-dependency"
OPERATOR = "system:serviceaccount:ml:operator"
OWNER: Json = {"apiVersion": "ml.example.com/v1", "kind": "Trainer", "name": "bert", "uid": "owner-1"}
ASKS_PAYMENTS: Json = {
    "exec": {"command": ["curl", "-f", "http://payments/health"]},
    "timeoutSeconds": 5,
    "periodSeconds": 20,
    "failureThreshold": 6,
}
CONFIG = load({})


class Setting:
    """The Events of a process on an API server, with a fake clock: to sleep is to advance it."""

    def __init__(self, fake: FakeApiServer, api: ApiServer) -> None:
        self.fake, self.now, self.slept = fake, 0.0, 0.0
        self.outcomes: Counter[str] = Counter()
        self.config = CONFIG
        self.events = OwnerEvents(
            api, lambda: self.config, NoCluster(), self._count, clock=lambda: self.now, sleep=self._sleep
        )
        self.memo = Memo()

    def _count(self, outcome: str) -> None:
        self.outcomes[outcome] += 1

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds

    def reviewed(self, pod: Json, **more: Any) -> None:
        """The pod is validated as in a server."""
        request = replace(
            Request("1", POD, "CREATE", pod["metadata"]["namespace"], object=pod, username=OPERATOR), **more
        )
        answer = self.memo.answer("validate", request, self.config, NoCluster(), engine.validate)
        assert answer.decision is not None
        self.events.notice(request, answer.decision)

    async def made(self, pod: Json, **more: Any) -> None:
        """The pod is validated, then there is one."""
        self.reviewed(pod, **more)
        await self.fake.put(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)

    async def settle(self) -> list[Json]:
        """All Events once the queue is worked off."""
        task = asyncio.create_task(self.events.run())
        try:
            await until(lambda: task.done() or not (self.events._queue.qsize() or self.events._pending))
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return [item for path, item in self.fake.objects.items() if "/events/" in path]


@pytest.fixture
async def setting(fake: FakeApiServer, tmp_path: Path) -> AsyncIterator[Setting]:
    async with ApiServer.connect(fake.kubeconfig(tmp_path)) as api:
        yield Setting(fake, api)


def pod(
    name: str = "bert-0", owner: Mapping[str, Any] = OWNER, namespace: str = "ml", **metadata: Any
) -> Json:
    """A pod that is restarted whenever another service is ill: refused, if it were a person's."""
    container = {"name": "main", "image": "registry.example/it:1", "livenessProbe": {**ASKS_PAYMENTS}}
    own = {"uid": f"uid-of-{name}", "ownerReferences": [{**owner, "controller": True}]}
    return manifest("Pod", name, {"containers": [container]}, namespace=namespace, **{**own, **metadata})


def other(number: int) -> Json:
    """Another owner."""
    return {**OWNER, "name": f"bert-{number}", "uid": f"owner-{number}"}


# --- the Events ----------------------------------------------------------------------------------------


async def test_a_finding_that_would_refuse_a_persons_pod_is_an_event_on_the_owner(setting: Setting) -> None:
    await setting.made(pod())
    (event,) = await setting.settle()
    assert event["involvedObject"] == {**OWNER, "namespace": "ml"}
    assert (event["type"], event["reason"]) == ("Warning", "ChassisFinding")
    assert event["metadata"]["namespace"] == "ml"
    assert event["message"].startswith(f"In a pod of it: {RULE}: ")
    assert "payments" in event["message"]
    assert "spec.containers[0].livenessProbe" in event["message"]
    assert "Not refused: it belongs to a Trainer" in event["message"]
    assert setting.outcomes == {"written": 1}
    assert setting.slept == owner_events.SETTLE_SECONDS, "the pod gets time to be stored"


async def test_a_pod_answered_from_the_memo_is_reported(setting: Setting) -> None:
    for name in ("bert-bcdfg", "bert-zxwvt"):
        await setting.made(pod(name, generateName="bert-"))
        events = await setting.settle()
        setting.now += owner_events.REPEAT_SECONDS
    assert len(events) == 1, "the same words about the same owner are one Event"
    assert setting.outcomes == {"written": 2}


# --- about whom ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "more"),
    [
        (pod(), {"dry_run": True}),
        (pod(), {"operation": "UPDATE", "old_object": pod()}),
        (pod(), {"username": "ada"}),
        (pod(), {"username": ""}),
        (pod(namespace="kube-system"), {}),
        (pod(annotations={"mlchassis.dev/exempt": f"{RULE}=payments is the pod's own proxy"}), {}),
        (pod(owner={**OWNER, "apiVersion": "apps/v1", "kind": "ReplicaSet"}), {}),
        (pod(owner={**OWNER, "apiVersion": "ray.io/v1", "kind": "RayCluster"}), {}),
        (pod(ownerReferences=[OWNER]), {}),
        (pod(owner={**OWNER, "apiVersion": "../v1"}), {}),
        (pod(owner={**OWNER, "kind": "Tra/iner"}), {}),
        (pod(owner={**OWNER, "name": "be/rt"}), {}),
        (pod(owner={**OWNER, "uid": ""}), {}),
        (pod(owner={**OWNER, "uid": "u" * 65}), {}),
        (pod(owner={**OWNER, "uid": 5}), {}),
    ],
    ids=[
        "dry run", "update", "a person", "nobody", "namespace out of scope", "exempted", "judged by its kind",
        "custom, judged", "no controller", "apiVersion", "kind", "name", "no uid", "long uid", "uid no text",
    ],
)  # fmt: skip
async def test_other_reviews_cause_no_event(setting: Setting, made: Json, more: Json) -> None:
    setting.config = load({"rules.yaml": f"modes: {{{RULE}: warn}}"})
    await setting.made(made, **more)
    assert not setting.events._queue.qsize()
    assert await setting.settle() == []
    assert setting.fake.requests == []


async def test_accounts_of_the_policy_count_as_controllers(setting: Setting) -> None:
    setting.config = load({"webhook.yaml": "controllers: [ci-*]"})
    await setting.made(pod(), username="ci-runner")
    assert len(await setting.settle()) == 1


async def test_a_review_of_a_missing_pod_is_not_reported(setting: Setting) -> None:
    setting.reviewed(pod())  # posted by anyone who reaches the port, or refused by a quota afterwards
    assert await setting.settle() == []
    assert setting.fake.requests == [("GET", "/api/v1/namespaces/ml/pods/bert-0")]
    assert setting.outcomes == {"dropped": 1}
    await setting.made(pod("bert-1"))
    assert len(await setting.settle()) == 1, "the next pod is reported"


@pytest.mark.parametrize(
    "live",
    [
        pod(uid="uid-of-the-next"),
        pod(owner=other(2)),
        pod(ownerReferences=[]),
        pod(owner={**OWNER, "apiVersion": "apps/v1", "kind": "ReplicaSet"}),
    ],
    ids=["another pod", "of another owner", "of none", "of a kind that is judged"],
)
async def test_a_forged_owner_gets_no_event(setting: Setting, live: Json) -> None:
    await setting.fake.put("/api/v1/namespaces/ml/pods", live)
    setting.reviewed(pod())
    assert await setting.settle() == []
    assert setting.outcomes == {"dropped": 1}


async def test_an_event_is_about_the_stored_pod_not_the_reviews_claim(setting: Setting) -> None:
    harmless = pod()
    del harmless["spec"]["containers"][0]["livenessProbe"]
    harmless["spec"]["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": 80}}
    await setting.fake.put("/api/v1/namespaces/ml/pods", harmless)
    setting.reviewed(pod())
    assert [event for event in await setting.settle() if RULE in event["message"]] == []


@pytest.mark.parametrize(
    ("name", "namespace"), [("../../secrets/s", "ml"), ("a?b", "ml"), ("a", "ml/pods/b?")]
)
async def test_a_name_cannot_change_the_path(setting: Setting, name: str, namespace: str) -> None:
    setting.reviewed(pod(name, namespace=namespace))
    assert await setting.settle() == []
    assert setting.fake.requests == []
    assert setting.outcomes == {"failed": 1}


async def test_a_namespace_that_is_excluded_meanwhile_gets_no_event(setting: Setting) -> None:
    await setting.made(pod())
    setting.config = load({"webhook.yaml": "namespaces: {exclude: [ml]}"})
    assert await setting.settle() == []
    assert setting.outcomes == {"dropped": 1}


# --- bounds --------------------------------------------------------------------------------------------


async def test_an_owner_gets_one_event_of_a_rule_an_hour(setting: Setting) -> None:
    for name in ("bert-0", "bert-1"):
        await setting.made(pod(name))
    assert setting.events._queue.qsize() == 1
    await setting.settle()
    await setting.made(pod("bert-2"))
    assert not setting.events._queue.qsize()
    setting.now += owner_events.REPEAT_SECONDS
    await setting.made(pod("bert-3"))
    await setting.settle()
    assert setting.outcomes == {"written": 2}


async def test_only_new_findings_of_a_pod_are_reported(setting: Setting) -> None:
    await setting.made(pod())
    await setting.settle()
    more = pod("bert-1")
    more["spec"]["containers"][0]["livenessProbe"]["failureThreshold"] = 1
    await setting.made(more)
    assert len(await setting.settle()) == 2
    assert [method for method, _ in setting.fake.requests] == ["GET", "POST"] * 2


async def test_the_queue_is_bounded(setting: Setting) -> None:
    for number in range(owner_events.QUEUED + 3):
        setting.reviewed(pod(f"p-{number}", other(number)))
    assert setting.outcomes == {"dropped": 3}
    assert setting.events._queue.qsize() == owner_events.QUEUED
    await setting.settle()
    await setting.made(pod("p-101", other(101)))
    assert len(await setting.settle()) == 1, "what was dropped for want of room may come again"


async def test_the_number_of_remembered_reports_is_bounded(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_events, "REMEMBERED", 2)
    for number in range(3):
        await setting.made(pod(f"p-{number}", other(number)))
    await setting.settle()
    assert [uid for uid, _ in setting.events._reported] == ["owner-1", "owner-2"]


async def test_calls_beyond_the_burst_wait_for_their_minute(setting: Setting) -> None:
    pods = 2 * owner_events.BURST
    for number in range(pods):  # a read and a write each
        await setting.made(pod(f"p-{number}", other(number)))
    assert len(await setting.settle()) == pods
    calls = [request for request in setting.fake.requests if request[0] in ("GET", "POST")]
    assert len(calls) == 2 * pods
    minutes = (len(calls) - owner_events.BURST) / owner_events.BURST
    assert setting.slept - owner_events.SETTLE_SECONDS == pytest.approx(60 * minutes)


# --- failures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        ("/api/v1/namespaces/ml/pods", "get Pods in the namespace ml"),
        ("/api/v1/namespaces/ml/events", "create and patch Events in the namespace ml"),
    ],
)
async def test_a_missing_permission_is_logged_once_and_then_off(
    setting: Setting, path: str, missing: str
) -> None:
    await setting.fake.forbid(path)
    for number in range(3):
        await setting.made(pod(f"p-{number}", other(number)))
    with structlog.testing.capture_logs() as lines:
        await setting.settle()
    assert [line["missing"] for line in lines if line["log_level"] == "error"] == [missing]
    assert setting.outcomes == {"failed": 1}
    await setting.fake.forbid()
    asked = len(setting.fake.requests)
    await setting.made(pod("later", other(9)))
    assert await setting.settle() == []
    assert len(setting.fake.requests) == asked


@pytest.mark.parametrize("fault", ["quota", "put off"])
async def test_other_errors_lose_only_that_event(setting: Setting, fault: str) -> None:
    if fault == "quota":
        await setting.fake.forbid("/api/v1/namespaces/ml/events", because="exceeded quota: User 1 cannot")
    else:
        setting.fake.putting_off = 1
    await setting.made(pod())
    assert await setting.settle() == []
    assert setting.outcomes == {"failed": 1}
    await setting.fake.forbid()
    await setting.made(pod("bert-1"))
    assert len(await setting.settle()) == 1


async def test_an_unreachable_api_server_loses_only_that_event(fake: FakeApiServer, tmp_path: Path) -> None:
    fake.url = "http://127.0.0.1:1"
    async with ApiServer.connect(fake.kubeconfig(tmp_path)) as api:
        setting = Setting(fake, api)
        await setting.made(pod())
        with structlog.testing.capture_logs() as lines:
            assert await setting.settle() == []
    assert setting.outcomes == {"failed": 1}
    assert [line for line in lines if line["log_level"] in ("warning", "error")] == []
