"""The golden cases of worker names: tests/policies/worker_names/worker-names/<case>/.

`given.yaml` is what the allocation has read: the `pod` that is asked for, its live `owner`, the `pods` of
the group, the `record` in its Lease, `now` and the policy's `settings`. `expected.yaml` is the answer: the
name with the record to swap in, the refusal, or that the pod is left alone. `make golden` rewrites it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from policies.kube.json import Json, mapping, maps, text
from policies.kube.yaml_text import load_all
from policies.worker_names import worker_names as policy
from policies.worker_names.worker_names import GivenName, Naming, Refused, WorkerGroup
from policies.worker_names.worker_names_settings import WorkerNames
from policies.worker_names.workers import (
    AllocationRecord,
    OwnerMismatch,
    Worker,
    WorkerOwner,
    desired,
    existing_pod,
    worker_of,
)
from tests.tables import table
from tests.webhook.worker_names.setting import worker as ray_worker
from webhook.config.load import load

CASES = sorted(path.parent for path in (Path(__file__).parent / "worker-names").glob("*/given.yaml"))


def answer(given: Json) -> Naming | None:
    """The answer; None if the pod is not named. The order of the attempts is that of /name."""
    worker = worker_of(given["pod"], "default")
    if worker is None:
        return None
    config = load({"worker-names.yaml": yaml.safe_dump(given.get("settings", {}))})
    settings = config.effective(given["pod"]).settings(WorkerNames)
    try:
        want = desired(given.get("owner"), worker)
    except OwnerMismatch as error:
        return policy.untrusted(str(error))
    pods = [existing_pod(pod) for pod in maps(given, "pods")]
    record = AllocationRecord.load(json.dumps(mapping(given, "record")))
    return policy.decide(worker, WorkerGroup(want, pods, record, given.get("now", 1000), "500"), settings)


def described(given: Json) -> Json:
    match answer(given):
        case GivenName(name, record):
            return {"name": name, "record": json.loads(record.dump())}
        case Refused(reason, message, ambiguous):
            unclear = [name for promise in ambiguous for name in promise.names]
            return {"refused": str(reason), "message": message} | ({"unclear": unclear} if unclear else {})
    return {"leftAlone": True}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Path, request: pytest.FixtureRequest) -> None:
    [given] = load_all((case / "given.yaml").read_text())
    found = described(given)
    if request.config.getoption("--update-golden", default=False):
        (case / "expected.yaml").write_text(yaml.safe_dump(found, sort_keys=False, width=100))
    [expected] = load_all((case / "expected.yaml").read_text())
    assert found == expected


def test_there_are_cases() -> None:
    assert len(CASES) > 20


# --- names -------------------------------------------------------------------------------------------------


def worker(cluster: str = "demo", group: str = "small", **fields: Any) -> Worker:
    return Worker("default", WorkerOwner("ray.io/v1", "RayCluster", cluster, "uid"), group, {}, **fields)


@pytest.mark.parametrize("number", [0, 9, 10, 999_999_999])
@pytest.mark.parametrize(
    ("cluster", "group"), [("a", "b"), ("c" * 63, "g" * 63), ("9lives", "GPU_a100.v2"), ("-", "-")]
)
def test_names_are_dns_labels_of_at_most_63_characters(cluster: str, group: str, number: int) -> None:
    for role in ({}, {"head": True}):
        for host in (None, 0, 127):
            name = policy.name_of(worker(cluster, group, **role), number, host)
            assert len(name) <= 63
            assert name.isascii()
            assert name.replace("-", "").isalnum()
            assert name == name.lower().strip("-")


def test_names_differ_where_the_readable_part_does_not() -> None:
    long = [("c" * 80, "one"), ("c" * 80, "two"), ("c" * 81, "one")]
    pairs = [("train", "gpu-large"), ("train-gpu", "large"), *long]
    assert len({policy.name_of(worker(*pair), 0) for pair in pairs}) == len(pairs)


def test_a_name_is_the_one_that_earlier_releases_gave() -> None:
    assert policy.name_of(worker(), 3) == "demo-small-worker-jrhdf-3"


def test_a_pod_loses_only_its_generate_name() -> None:
    pod = {"metadata": {"generateName": "demo-", "labels": {"a": "b"}}, "spec": {"containers": []}}
    assert policy.with_name(pod, "demo-0") == {**pod, "metadata": {"labels": {"a": "b"}, "name": "demo-0"}}
    assert text(pod, "metadata", "generateName") == "demo-"


@pytest.mark.parametrize(
    ("label", "index"),
    [("0", 0), ("12", 12), ("", None), ("x", None), ("-1", None), ("٣", None), ("1" * 10, None)],
)
def test_only_a_small_number_is_an_index(label: str, index: int | None) -> None:
    found = worker_of(ray_worker({"ray.io/worker-group-replica-index": label}), "default")
    assert found is not None
    assert found.replica_index == index


def test_a_kind_of_the_same_name_in_another_group_is_not_kuberays() -> None:
    assert WorkerOwner("ray.io/v1alpha1", "RayCluster", "demo", "uid").is_ray
    assert not WorkerOwner("example.com/v1", "RayCluster", "demo", "uid").is_ray


# --- the record --------------------------------------------------------------------------------------------


@table(
    "text",
    [
        *(None, "", "{", "[]", "null", "[" * 100_000),
        *('{"highest":"x"}', '{"highest":1e999}', '{"highest":-2}', f'{{"highest":{10**60}}}'),
        *('{"reservations":[{"names":["a"]}]}', '{"reservations":7}'),
    ],
)
def test_an_invalid_record_is_an_empty_one(text: str | None) -> None:
    assert AllocationRecord.load(text) == AllocationRecord()


def test_a_record_survives_its_lease() -> None:
    record = policy.decide(
        worker(replica="small-x7k2p"),
        WorkerGroup(desired(_cluster(replicas=2, hosts=4), worker()), [], AllocationRecord(7), 1000.5, "88"),
        WorkerNames(),
    )
    assert isinstance(record, GivenName)
    assert AllocationRecord.load(record.record.dump()) == record.record
    assert len(record.record.reservations[0].names) == 4


@pytest.mark.parametrize("host", [0, 1, 999_999_999])
@pytest.mark.parametrize("hosts", [2, 2**31 - 1])
def test_absurd_numbers_of_hosts_make_neither_a_long_loop_nor_a_large_lease(hosts: int, host: int) -> None:
    member = worker(replica="small-x7k2p", host=host, replica_index=0)
    group = WorkerGroup(desired(_cluster(replicas=1, hosts=hosts), member), [], AllocationRecord(), 1000)
    given = policy.decide(member, group, WorkerNames())
    assert isinstance(given, GivenName)
    assert given.name.endswith(f"-0-{host}")
    assert len(given.record.dump()) < 100_000


def _cluster(replicas: int, hosts: int) -> Json:
    group = {"groupName": "small", "replicas": replicas, "numOfHosts": hosts}
    return {"metadata": {"name": "demo", "uid": "uid"}, "spec": {"workerGroupSpecs": [group]}}
