"""Running pods that lack what the policy gives to new ones, and servers whose hang is noticed."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from policies.core.facts import NoCluster
from tests.webhook.admission.test_missed import NOW, made, vllm
from tests.webhook.kube.apiserver import FakeApiServer
from webhook.admission.missed import missed
from webhook.kube.api import ApiServer
from webhook.server import running_pods
from webhook.server.running_pods import RunningPods

PODS = "/api/v1/namespaces/ml/pods"
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": "u", "controller": True}


@pytest.fixture
def counting(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> RunningPods:
    monkeypatch.setattr(running_pods, "PAUSE_SECONDS", 0)
    return RunningPods(api, lambda: NOW, NoCluster(), CollectorRegistry(), lambda: True)


async def one_pass(counting: RunningPods, monkeypatch: pytest.MonkeyPatch) -> float:
    """The gauge after the first pass, which begins after FIRST_SECONDS."""
    slept: list[float] = []

    class Enough(Exception):
        pass

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if seconds == running_pods.PASS_SECONDS:
            raise Enough

    monkeypatch.setattr("asyncio.sleep", sleep)
    with pytest.raises(Enough):
        await counting.run()
    assert slept[0] == running_pods.FIRST_SECONDS
    return float(counting.unmutated._value.get())


async def test_pods_that_lack_something_are_counted(fake: FakeApiServer, counting: RunningPods) -> None:
    whole = made(vllm(), NOW)
    for n in range(3):
        owned = {"name": f"of-{n}", "uid": f"p{n}", "ownerReferences": [OWNER]}
        await fake.put(PODS, vllm(**owned))
        await fake.put(PODS, {**whole, "metadata": {**whole["metadata"], **owned, "name": f"whole-{n}"}})
    await fake.put(PODS, vllm(name="alone", uid="alone"))
    await fake.put(PODS, vllm(name="left", uid="left", labels={"mlchassis.dev/admission": "disabled"}))
    await fake.put(PODS, {**vllm(name="done", uid="done"), "status": {"phase": "Succeeded"}})
    assert (await counting.count()).unmutated == 4


async def test_pods_of_one_owner_are_decided_about_once(
    fake: FakeApiServer, counting: RunningPods, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(20):
        await fake.put(PODS, vllm(name=f"of-{n}", uid=f"p{n}", ownerReferences=[OWNER]))
    decided = 0
    decide = missed

    def counted(*arguments: object) -> object:
        nonlocal decided
        decided += 1
        return decide(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(running_pods, "missed", counted)
    assert (await counting.count()).unmutated == 20
    assert decided == 1


@pytest.mark.parametrize("holds", [True, False])
async def test_only_the_replica_that_holds_the_lease_counts(
    fake: FakeApiServer, counting: RunningPods, monkeypatch: pytest.MonkeyPatch, holds: bool
) -> None:
    await fake.put(PODS, vllm(uid="p"))
    monkeypatch.setattr(counting, "_is_leader", lambda: holds)
    assert await one_pass(counting, monkeypatch) == int(holds)
    assert bool(fake.requests) is holds


async def test_an_api_server_that_refuses_leaves_the_last_count(
    fake: FakeApiServer, counting: RunningPods, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting.unmutated.set(5)
    await fake.forbid("/api/v1/pods")
    assert await one_pass(counting, monkeypatch) == 5


async def test_servers_are_counted_by_whether_a_hang_is_noticed(
    fake: FakeApiServer, counting: RunningPods, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = made(vllm(), NOW)
    for n in range(3):
        owned = {"name": f"whole-{n}", "uid": f"w{n}", "ownerReferences": [OWNER]}
        await fake.put(PODS, {**whole, "metadata": {**whole["metadata"], **owned}})
    await fake.put(PODS, vllm(name="alone", uid="alone"))
    await fake.put(PODS, {**vllm(name="odd", uid="odd"), "spec": {"containers": [{"name": 1}]}})
    await one_pass(counting, monkeypatch)
    assert shown(counting) == {("vllm", "noticed"): 3, ("vllm", "not_noticed"): 1}
    for n in range(3):
        await fake.delete(f"{PODS}/whole-{n}")
    await one_pass(counting, monkeypatch)
    assert shown(counting) == {("vllm", "noticed"): 0, ("vllm", "not_noticed"): 1}
    monkeypatch.setattr(counting, "_is_leader", lambda: False)
    await one_pass(counting, monkeypatch)
    assert set(shown(counting).values()) == {0}


def shown(counting: RunningPods) -> dict[tuple[str, str], float]:
    [family] = counting.servers.collect()
    return {(each.labels["server"], each.labels["hang"]): each.value for each in family.samples}
