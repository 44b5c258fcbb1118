"""The number of running pods that lack what the policy gives to new ones."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from policies.core.facts import NoCluster
from tests.webhook.admission.test_missed import NOW, made, vllm
from tests.webhook.kube.apiserver import FakeApiServer
from webhook.admission.missed import missed
from webhook.kube.api import ApiServer
from webhook.server import running_pods as unmutated
from webhook.server.running_pods import Unmutated

PODS = "/api/v1/namespaces/ml/pods"
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": "u", "controller": True}


@pytest.fixture
def counting(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> Unmutated:
    monkeypatch.setattr(unmutated, "PAUSE_SECONDS", 0)
    return Unmutated(api, lambda: NOW, NoCluster(), CollectorRegistry(), lambda: True)


async def one_pass(counting: Unmutated, monkeypatch: pytest.MonkeyPatch) -> float:
    """The gauge after the first pass, which begins after FIRST_SECONDS."""
    slept: list[float] = []

    class Enough(Exception):
        pass

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if seconds == unmutated.PASS_SECONDS:
            raise Enough

    monkeypatch.setattr("asyncio.sleep", sleep)
    with pytest.raises(Enough):
        await counting.run()
    assert slept[0] == unmutated.FIRST_SECONDS
    return float(counting.gauge._value.get())


async def test_pods_that_lack_something_are_counted(fake: FakeApiServer, counting: Unmutated) -> None:
    whole = made(vllm(), NOW)
    for n in range(3):
        owned = {"name": f"of-{n}", "uid": f"p{n}", "ownerReferences": [OWNER]}
        await fake.put(PODS, vllm(**owned))
        await fake.put(PODS, {**whole, "metadata": {**whole["metadata"], **owned, "name": f"whole-{n}"}})
    await fake.put(PODS, vllm(name="alone", uid="alone"))
    await fake.put(PODS, vllm(name="left", uid="left", labels={"mlchassis.dev/admission": "disabled"}))
    await fake.put(PODS, {**vllm(name="done", uid="done"), "status": {"phase": "Succeeded"}})
    assert await counting.count() == 4


async def test_pods_of_one_owner_are_decided_about_once(
    fake: FakeApiServer, counting: Unmutated, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(20):
        await fake.put(PODS, vllm(name=f"of-{n}", uid=f"p{n}", ownerReferences=[OWNER]))
    decided = 0
    decide = missed

    def counted(*arguments: object) -> object:
        nonlocal decided
        decided += 1
        return decide(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(unmutated, "missed", counted)
    assert await counting.count() == 20
    assert decided == 1


@pytest.mark.parametrize("holds", [True, False])
async def test_only_the_replica_that_holds_the_lease_counts(
    fake: FakeApiServer, counting: Unmutated, monkeypatch: pytest.MonkeyPatch, holds: bool
) -> None:
    await fake.put(PODS, vllm(uid="p"))
    monkeypatch.setattr(counting, "_is_leader", lambda: holds)
    assert await one_pass(counting, monkeypatch) == int(holds)
    assert bool(fake.requests) is holds


async def test_an_api_server_that_refuses_leaves_the_last_count(
    fake: FakeApiServer, counting: Unmutated, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting.gauge.set(5)
    await fake.forbid("/api/v1/pods")
    assert await one_pass(counting, monkeypatch) == 5
