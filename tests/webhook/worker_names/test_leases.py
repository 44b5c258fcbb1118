"""The Leases of worker names: where they are, what their loss costs, and when they are deleted."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from policies.core.annotations import WORKER_NAMES, WORKER_NAMES_OWNER
from policies.kube.json import Json
from policies.worker_names.worker_names import name_of
from policies.worker_names.workers import Worker, WorkerOwner, worker_of
from tests.webhook.worker_names.setting import (
    CLUSTERS,
    EARLIER_LEASES,
    LEASES,
    OWN,
    PODS,
    Setting,
    labelled,
    worker,
)
from webhook.worker_names.cluster import IDLE_SECONDS, Sweep, earlier_lease_name, lease_name

OWNER = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "namespace": "ml", "name": "demo"}


async def test_the_lease_is_in_our_own_namespace_and_names_its_owner(setting: Setting) -> None:
    await setting.cluster(2)
    await setting.create()
    [lease] = setting.leases()
    assert lease["metadata"]["namespace"] == OWN
    assert "ownerReferences" not in lease["metadata"], "an owner can't be in another namespace"
    assert json.loads(lease["metadata"]["annotations"][WORKER_NAMES_OWNER]) == OWNER | {"uid": "uid-1"}
    written = {path for method, path in setting.fake.requests if method in ("POST", "PUT")}
    assert written == {LEASES}


def test_lease_names_are_one_for_each_owner_and_group_and_at_most_253_long() -> None:
    def member(cluster: str = "demo", group: str = "small", head: bool = False) -> Worker:
        return Worker(
            "ml", WorkerOwner("ray.io/v1", "RayCluster", cluster, f"uid of {cluster}"), group, {}, head
        )

    members = [member(), member(group="s" * 63), member("c" * 253), member(head=True), member(group="head")]
    members += [replace(it, namespace="n" * 63) for it in members]
    members += [replace(member("a-b"), namespace="n"), replace(member("b"), namespace="n-a")]
    found = {lease_name(it) for it in members}
    assert len(found) == len(members)
    assert all(len(name) <= 253 and name.replace("-", "").isalnum() for name in found)


async def test_a_lease_that_is_deleted_by_hand_brings_no_name_back(setting: Setting) -> None:
    await setting.cluster(2)
    given: list[str] = []
    for _ in range(5):
        given.append(await setting.create())
        await setting.fake.delete(f"{PODS}/{given[-1]}")
        [lease] = setting.leases()
        await setting.fake.delete(f"{LEASES}/{lease['metadata']['name']}")
    assert len(set(given)) == len(given)
    assert {name.rpartition("-")[2] for name in given} == {"0"}, "the numbers do come again"


async def test_a_new_cluster_of_the_same_name_gets_other_names(setting: Setting) -> None:
    await setting.cluster(1)
    first = await setting.create()
    await setting.fake.delete(f"{PODS}/{first}")
    await setting.cluster(1, uid="uid-2")
    pod = worker()
    pod["metadata"]["ownerReferences"][0]["uid"] = "uid-2"
    assert await setting.create(pod) != first


# --- Leases of an earlier release, in the workers' namespaces ---------------------------------------------


def member() -> Worker:
    found = worker_of(worker(), "ml")
    assert found is not None
    return found


def put_earlier_lease(setting: Setting, promised: str = "") -> str:
    """Its path."""
    name = earlier_lease_name(member())
    promise = {"names": [promised], "at": setting.workers.now(), "from": "1"}
    record = json.dumps({"highest": 7, "reservations": [promise] if promised else []})
    metadata = {"name": name, "namespace": "ml", "annotations": {WORKER_NAMES: record}}
    setting.fake.objects[f"{EARLIER_LEASES}/{name}"] = {"metadata": metadata}
    return f"{EARLIER_LEASES}/{name}"


async def test_numbers_go_on_from_an_earlier_lease_which_is_left_as_it_is(setting: Setting) -> None:
    await setting.cluster(3)
    path = put_earlier_lease(setting)
    before = setting.fake.objects[path]
    names = [await setting.create() for _ in range(2)]
    assert [given.rpartition("-")[2] for given in names] == ["8", "9"]
    assert setting.fake.objects[path] == before, "the garbage collector takes it with its cluster"
    assert setting.fake.requests.count(("GET", path)) == 1
    # A replica of the earlier release may be giving this one at the same moment.
    assert name_of(member(), 8) not in names


async def test_a_promise_in_an_earlier_lease_holds(setting: Setting) -> None:
    await setting.cluster(1)
    await setting.fake.expire()
    put_earlier_lease(setting, promised="demo-small-worker-abcde-7")
    assert "1 being created (demo-small-worker-abcde-7)" in (await setting.refused()).message


async def test_earlier_leases_that_may_not_be_read_are_asked_for_once(setting: Setting) -> None:
    await setting.cluster(2)
    put_earlier_lease(setting)
    await setting.fake.forbid(EARLIER_LEASES)
    assert (await setting.create()).endswith("-0")
    assert (await setting.ask(worker({"ray.io/node-type": "head"}))).allowed
    assert sum(path.startswith(EARLIER_LEASES) for _, path in setting.fake.requests) == 1


# --- the sweep --------------------------------------------------------------------------------------------


async def put_lease(setting: Setting, lease: str, idle: float = IDLE_SECONDS + 60, **owner: Any) -> None:
    annotations = {WORKER_NAMES_OWNER: json.dumps(OWNER | {"uid": "uid-1"} | owner)}
    metadata = {"name": lease, "labels": {WORKER_NAMES: "record"}, "annotations": annotations}
    renewed = datetime.fromtimestamp(setting.workers.now() - idle, UTC).isoformat(timespec="microseconds")
    spec = {"renewTime": renewed.replace("+00:00", "Z")}
    await setting.fake.put(LEASES, {"metadata": metadata, "spec": spec})


async def swept(setting: Setting) -> list[str]:
    """The names of the Leases that are left."""
    await Sweep(setting.workers, pace=0).once()
    return sorted(lease["metadata"]["name"] for lease in setting.leases())


async def test_leases_of_owners_that_are_gone_are_deleted_and_no_others(setting: Setting) -> None:
    await setting.cluster(1)
    await put_lease(setting, "lives")
    await put_lease(setting, "gone", name="gone")
    await put_lease(setting, "made-anew", uid="uid-of-an-earlier-one")
    await put_lease(setting, "just-written", name="gone", idle=60)
    await setting.fake.put(LEASES, {"metadata": {"name": "a-leader-election"}, "spec": {}})
    assert await swept(setting) == ["a-leader-election", "just-written", "lives"]


@pytest.mark.parametrize(
    "owner",
    [
        {"apiVersion": "../../api/v1/pods?x="},
        {"apiVersion": 7},
        {"kind": None},
        {"name": ["demo"]},
        {"namespace": "../.."},
        {"namespace": 7},
        {"uid": {}},
    ],
    ids=str,
)
async def test_a_lease_without_an_owner_stays(setting: Setting, owner: Json) -> None:
    await put_lease(setting, "odd", **owner)
    assert await swept(setting) == ["odd"]
    assert not [path for _, path in setting.fake.requests if not path.startswith(LEASES)]


async def test_a_lease_whose_owner_can_t_be_looked_up_stays_and_the_others_are_swept(
    setting: Setting,
) -> None:
    await setting.fake.forbid("/apis/ray.io/v1/namespaces/secret")
    await put_lease(setting, "a-unknown", namespace="secret")
    await put_lease(setting, "b-gone")
    assert await swept(setting) == ["a-unknown"]


async def test_the_scale_of_another_controller_is_asked_for_its_uid(setting: Setting) -> None:
    path = setting.serve("apps/v1", "replicasets", "ReplicaSet", replicas=1)
    await setting.create(labelled("apps/v1", "ReplicaSet"))
    [lease] = setting.leases()
    lease["spec"]["renewTime"] = "2020-01-01T00:00:00.000000Z"
    name = lease["metadata"]["name"]
    assert await swept(setting) == [name]
    setting.fake.objects[path]["metadata"]["uid"] = "uid-10"
    assert await swept(setting) == []


async def test_a_lease_that_is_written_during_the_sweep_stays(setting: Setting) -> None:
    await put_lease(setting, "gone", name="gone")

    async def write() -> None:
        await put_lease(setting, "gone", name="gone", idle=0)

    setting.fake.before_write = write
    assert await swept(setting) == ["gone"]


@pytest.mark.usefixtures("patient")
async def test_a_sweep_between_two_creates_brings_no_name_back(setting: Setting) -> None:
    """After a record that a sweep took by mistake, the next one is different."""
    await setting.cluster(1)
    first = await setting.create()
    await setting.fake.delete(f"{PODS}/{first}")
    cluster = setting.fake.objects.pop(f"{CLUSTERS}/demo")
    for lease in setting.leases():
        lease["spec"]["renewTime"] = "2020-01-01T00:00:00.000000Z"
    assert await swept(setting) == []
    setting.fake.objects[f"{CLUSTERS}/demo"] = cluster
    assert await setting.create() != first
