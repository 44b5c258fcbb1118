"""The endpoint /name against a small API server over real HTTP."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from policies.core.annotations import CHANGED, WORKER_NAMES
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json
from tests.webhook.worker_names.setting import (
    CLUSTERS,
    EVENTS,
    LEASES,
    OWN,
    PATIENCE,
    PODS,
    Setting,
    labelled,
    worker,
)
from webhook.admission.answer import Response
from webhook.admission.changed_annotation import Changed
from webhook.admission.configuration import Config
from webhook.admission.envelope import Request
from webhook.kube.api import ApiServer
from webhook.worker_names import endpoint as names
from webhook.worker_names.cluster import LiveWorkers

# --- given names -------------------------------------------------------------


async def test_the_name_comes_with_the_promise_and_without_generate_name(setting: Setting) -> None:
    await setting.cluster(2)
    response = await setting.ask()
    by_path = {operation["path"]: operation for operation in response.patch}
    name = by_path["/metadata/name"]["value"]
    assert by_path == {
        "/metadata/name": {"op": "add", "path": "/metadata/name", "value": name},
        "/metadata/generateName": {"op": "remove", "path": "/metadata/generateName"},
        "/metadata/annotations": {
            "op": "add",
            "path": "/metadata/annotations",
            "value": {CHANGED: by_path["/metadata/annotations"]["value"][CHANGED]},
        },
    }
    changed = Changed.read(by_path["/metadata/annotations"]["value"][CHANGED])
    assert changed is not None
    assert [(each.policy, each.path) for each in changed.entries] == [("worker-names", "metadata.name")]
    assert response.audit == {"name": name}
    [lease] = setting.leases()
    assert name in lease["metadata"]["annotations"][WORKER_NAMES]
    assert lease["spec"]["holderIdentity"] == "webhook-0"
    assert setting.count("given_total") == 1


async def test_what_others_wrote_into_the_lease_stays(setting: Setting) -> None:
    await setting.cluster(3)
    await setting.create()
    [lease] = setting.leases()
    lease["metadata"]["labels"]["theirs"] = "kept"
    await setting.fake.put(LEASES, {**lease, "spec": {**lease["spec"], "strategy": "OldestEmulationVersion"}})
    await setting.create()
    [lease] = setting.leases()
    assert lease["metadata"]["labels"]["theirs"] == "kept"
    assert lease["spec"]["strategy"] == "OldestEmulationVersion"


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("labels", [{}, {"ray.io/worker-group-replica-index": "0"}], ids=["group", "replica"])
async def test_a_deleted_pod_frees_its_place_at_once_but_not_its_name(
    setting: Setting, labels: dict[str, str]
) -> None:
    await setting.cluster(1)
    name = await setting.create(worker(labels))
    await setting.fake.delete(f"{PODS}/{name}")
    assert await setting.create(worker(labels)) != name
    assert setting.count("given_total") == 2


async def test_without_the_history_its_place_is_free_a_lifetime_later(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    await setting.cluster(1)
    name = await setting.create()
    await setting.fake.delete(f"{PODS}/{name}")
    await setting.fake.expire()
    assert f"1 being created ({name})" in (await setting.refused()).message
    assert setting.count("refused_total", reason="promised") == 1
    now = setting.workers.now()
    monkeypatch.setattr(setting.workers, "now", lambda: now + 77)  # the clock lags up to 2 s
    assert (await setting.ask()).allowed


# --- refusals ------------------------------------------------------------------


async def test_a_double_creation_is_a_409_and_an_event_at_the_first_of_a_burst(setting: Setting) -> None:
    await setting.cluster(1)
    await setting.create()
    for _ in range(3):
        status = await setting.refused()
        assert (status.code, status.reason) == (409, "AlreadyExists")
    [event] = await setting.events()
    assert event["reason"] == "DoubleCreationRefused"
    assert event["involvedObject"]["uid"] == "uid-1"
    assert setting.count("refused_total", reason="exists") == 3
    writes = [path for method, path in setting.fake.requests if method == "POST" and path == EVENTS]
    assert len(writes) == 1


async def test_a_promise_refuses_without_an_event(setting: Setting) -> None:
    await setting.cluster(1)
    assert (await setting.ask()).allowed
    assert not (await setting.ask()).allowed
    assert setting.count("refused_total", reason="promised") == 1
    assert await setting.events() == []


async def test_each_group_has_separate_bursts_and_they_end(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    await setting.cluster(0)
    head = worker({"ray.io/group": "headgroup", "ray.io/node-type": "head"})
    await setting.create(head)
    for pod in (worker(), head, worker(), head):
        assert not (await setting.ask(pod)).allowed
    assert sorted(event["message"].partition(" was ")[0] for event in await setting.events()) == [
        "A pod beyond those wanted in the head group",
        "A pod beyond those wanted in worker group small",
    ]

    def written_events() -> int:
        return sum(path == EVENTS for method, path in setting.fake.requests if method == "POST")

    assert written_events() == 2
    monkeypatch.setattr(names, "BURSTS_KEPT", 1)  # more groups than are remembered: each is logged again
    for pod in (worker(), head, worker()):
        await setting.ask(pod)
    await setting.namer.close()
    assert written_events() == 4
    monkeypatch.setattr(names, "BURST_SECONDS", 0.0)
    await setting.ask()
    await setting.namer.close()
    assert written_events() == 5


async def test_an_owner_of_another_uid_is_not_trusted(setting: Setting) -> None:
    await setting.cluster(1, uid="uid-2")
    status = await setting.refused()
    assert (status.code, status.reason) == (409, "Conflict")
    assert setting.leases() == []


# --- pods without a name ----------------------------------------------------------


@pytest.mark.parametrize(
    "pod",
    [
        worker(name="demo-head"),
        worker(ownerReferences=[]),
        worker({"ray.io/node-type": "redis-cleanup"}),
        worker({"ray.io/is-ray-node": "no"}),
    ],
    ids=["named", "no-controller", "redis-cleanup", "not-a-ray-node"],
)
async def test_left_alone_without_a_question(setting: Setting, pod: Json) -> None:
    assert await setting.ask(pod) == Response()
    assert setting.fake.requests == []


async def test_an_update_a_subresource_and_an_excluded_namespace_are_left_alone(setting: Setting) -> None:
    setting.configure(webhook="namespaces: {exclude: [ml]}")
    assert await setting.ask() == Response()
    setting.policy = Config()
    create = Request("uid", GroupKind("", "Pod"), "CREATE", "ml", object=worker())
    for request in (
        replace(create, operation="UPDATE"),
        replace(create, subresource="binding"),
        replace(create, name="demo-0"),
        replace(create, kind=GroupKind("apps", "ReplicaSet")),
        replace(create, object=None),
    ):
        deadline = asyncio.get_running_loop().time() + PATIENCE
        assert await setting.namer.review(request, deadline) == Response()
    assert setting.fake.requests == []


async def test_a_label_whose_owner_has_no_scale_is_reported_as_without_effect(setting: Setting) -> None:
    pod = worker({"mlchassis.dev/worker-group": "w"})
    del pod["metadata"]["labels"]["ray.io/is-ray-node"]
    pod["metadata"]["ownerReferences"][0] |= {"apiVersion": "batch/v1", "kind": "Job"}
    served = [{"name": "jobs", "kind": "Job"}, {"name": "jobs/status", "kind": "Job"}]
    setting.fake.objects["/apis/batch/v1"] = {"resources": served}
    response = await setting.ask(pod)
    assert response.allowed
    assert "has no scale subresource" in response.warnings[0]
    setting.configure(worker_names="mode: audit")
    response = await setting.ask(pod)
    assert response.allowed
    assert not response.warnings
    assert "has no scale subresource" in response.audit["not-named"]


@pytest.mark.parametrize(
    ("api_version", "plural", "kind", "namespaced"),
    [("apps/v1", "replicasets", "ReplicaSet", True), ("acme.io/v1", "fleets", "Fleet", False)],
)
async def test_other_controllers_want_the_pods_of_their_scale(
    setting: Setting, api_version: str, plural: str, kind: str, namespaced: bool
) -> None:
    setting.serve(api_version, plural, kind, namespaced=namespaced, replicas=1)
    pod = labelled(api_version, kind)
    assert (await setting.create(pod)).startswith("crunch-w-")
    counted = f"{kind} crunch, worker group w: 1 wanted, 1 existing"
    assert counted in (await setting.refused(pod)).message


# --- concurrency -----------------------------------------------------------


async def test_many_at_once_through_two_processes_get_as_many_names_as_are_wanted(
    setting: Setting, tmp_path: Path
) -> None:
    await setting.cluster(5)
    async with ApiServer.connect(setting.fake.kubeconfig(tmp_path)) as api:
        other = Setting(setting.fake, api)
        responses = await asyncio.gather(*(it.ask() for it in (setting, other) * 6))
    given = [response.audit["name"] for response in responses if response.allowed]
    assert len(given) == len(set(given)) == 5
    assert setting.count("swaps_lost_total") + other.count("swaps_lost_total") > 0


async def test_the_time_is_the_api_servers(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.kube.api.time.time", lambda: 1000.0)
    async with ApiServer.connect(setting.fake.kubeconfig(tmp_path)) as api:
        monkeypatch.undo()
        assert LiveWorkers(api, OWN).now() < 2000
        began = time.time()
        await api.get(CLUSTERS + "/demo")
        assert began - 3 < LiveWorkers(api, OWN).now() < time.time() + 3
