"""How evenly `chassis serve --workers N` shares reviews, and whether `/metrics` has those of all workers.

With a real kube-apiserver. First the benchmark's own connections, each of which sends its next review when it
has its answer; then clients that create pods at the same time, and the API server's connections. Writes its
section of docs/benchmarks.md.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
from prometheus_client.mmap_dict import MmapedDict

from benchmarks import _load as load
from benchmarks._page import spread, write
from benchmarks._reviews import Workloads
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis
from webhook.server.worker import TURN_SECONDS

ROUNDS = int(os.environ.get("ROUNDS", "5"))
REVIEWS = 2000
CLIENTS, CREATES = 8, 50
NAMESPACE = "bench"
COUNTED = "chassis_admission_requests_total"


def _reviews(scratch: Path) -> Counter[str]:
    """How many reviews each worker has answered: what it has put into the file that all of them read."""
    time.sleep(2 * TURN_SECONDS)  # until each has put it there
    found: Counter[str] = Counter()
    for path in scratch.glob("chassis-metrics-*/counter_*.db"):
        for key, value, *_ in MmapedDict.read_all_values_from_file(str(path)):  # type: ignore[no-untyped-call]
            if json.loads(key)[1] == COUNTED:
                found[path.stem] += round(value)
    return found


def _own_connections(chassis: Chassis, seed: int) -> None:
    stream = Workloads(seed).pods(REVIEWS, 0.9)
    load.closed(chassis.port, "mutate", stream.measured)


def _api_server(control_plane: ControlPlane, seed: int) -> None:
    _, pods = Workloads(seed).replicas(CLIENTS * CREATES, 0.9)
    bodies = [orjson.dumps({**pod, "metadata": {**pod["metadata"], "namespace": NAMESPACE}}) for pod in pods]
    headers = {**control_plane.api.headers, "Content-Type": "application/json"}

    def create(number: int) -> None:
        with control_plane.api.connection() as connection:
            for body in bodies[number::CLIENTS]:
                connection.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", body, headers)
                answer = connection.getresponse()
                text = answer.read()
                assert answer.status == 201, text

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(create, range(CLIENTS)))


def _shares(scratch: Path, workers: int, send: Callable[[int], None]) -> list[float]:
    """The share of the busiest worker, round by round, times the number of workers."""
    found = []
    for number in range(ROUNDS):
        before = _reviews(scratch)
        send(number)
        each = _reviews(scratch) - before
        found.append(max(each.values()) / each.total() * workers)
    return sorted(found)


def _row(control_plane: ControlPlane, scratch: Path, workers: int) -> str:
    chassis = Chassis(control_plane, arguments=[f"--workers={workers}"])
    chassis.install()
    chassis.start()
    try:
        own = _shares(scratch, workers, lambda seed: _own_connections(chassis, seed))
        theirs = _shares(scratch, workers, lambda seed: _api_server(control_plane, seed))
        counted, sent = chassis.metric(COUNTED), _reviews(scratch).total()
    finally:
        chassis.stop()
    cells = [spread(each) for each in (own, theirs)]
    return f"| {workers} | {' | '.join(cells)} | {sent:,} | {counted:,.0f} |"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        os.environ["TMPDIR"] = directory  # where a server keeps what its workers count
        tempfile.tempdir = None
        with ControlPlane(scratch / "cluster") as control_plane:
            control_plane.create_namespace(NAMESPACE)
            control_plane.end("kube-scheduler", "kube-controller-manager", "kwok")
            rows = [_row(control_plane, scratch, workers) for workers in (2, 4)]
    write(
        "workers",
        rows="\n".join(rows),
        rounds=ROUNDS,
        reviews=REVIEWS,
        connections=load.CONNECTIONS,
        clients=CLIENTS,
        creates=CLIENTS * CREATES,
    )


if __name__ == "__main__":
    main()
