"""The cost of a worker's name, by the size of its group: only the decision, without reads and swaps.

The baseline is `orjson.loads` of the list of the group's pods, which the decision can't do without.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import orjson

from benchmarks._timing import best, table
from policies.kube.json import Json
from policies.worker_names import worker_names
from policies.worker_names.worker_names import Naming, WorkerGroup, name_of
from policies.worker_names.worker_names_settings import WorkerNames
from policies.worker_names.workers import (
    AllocationRecord,
    DesiredWorkers,
    Reservation,
    Worker,
    WorkerOwner,
    existing_pod,
)

SIZES = (10, 200, 2_000)
OWNER = WorkerOwner("ray.io/v1", "RayCluster", "demo", "0f4e7c1a-1f0e-4b7e-9c43-2d9a8f5c6b10")
WORKER = Worker("default", OWNER, "small", {}, replica_index=0)
SETTINGS = WorkerNames()


def pod(number: int) -> Json:
    """A worker as it is listed, some 4 KB of JSON."""
    labels = {"ray.io/cluster": "demo", "ray.io/group": "small", "ray.io/node-type": "worker"}
    env = [{"name": f"RAY_SETTING_{n}", "value": "a value of a common length"} for n in range(40)]
    return {
        "metadata": {"name": name_of(WORKER, number), "labels": labels},
        "spec": {"containers": [{"name": "ray-worker", "image": "rayproject/ray:2.52.0", "env": env}]},
        "status": {"phase": "Running"},
    }


def main() -> None:
    """Print a table for each size of the group."""
    for size in SIZES:
        pods = [pod(number) for number in range(size)]
        listed = orjson.dumps({"items": pods})
        promises = tuple(Reservation((name_of(WORKER, size + n),), 1000.0) for n in range(8))
        record = AllocationRecord(size + 8, promises)

        table(
            f"one more worker in a group of {size} ({len(listed) / 1024:.0f} KiB listed)",
            "orjson.loads of the list",
            {
                "orjson.loads of the list": best(partial(orjson.loads, listed)),
                "the decision": best(partial(decide, pods, record)),
                "the record, read and written": best(partial(rewrite, record)),
            },
        )


def decide(pods: Sequence[Json], record: AllocationRecord) -> Naming:
    group = WorkerGroup(
        DesiredWorkers(len(pods) + 100), [existing_pod(item) for item in pods], record, 1000.0
    )
    return worker_names.decide(WORKER, group, SETTINGS)


def rewrite(record: AllocationRecord) -> AllocationRecord:
    return AllocationRecord.load(record.dump())


if __name__ == "__main__":
    main()
