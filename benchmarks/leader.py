"""What leading costs: two replicas next to a real kube-apiserver, while KWOK starts 10,000 pods and later.

Both replicas serve and watch the same. One of them leads, so the difference is the leader's work: it watches
all pods, records their starts and ends, and asks pullers for their models. A tenth of the pods have a puller
with five models. At first all models are loaded; in the last phase some fail, with another reason at each
question, which is the most that pods can make the leader write.

The pods are written straight into etcd, bound to nodes, and KWOK makes them ready through the API. The API
server's audit log has every write of the webhook. All of it runs in a network namespace, in which the
addresses of all pods lead to one status page.

Environment: PODS, SECONDS of each phase after the start. Writes its section of docs/scaling.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import orjson

from benchmarks import _load as load
from benchmarks._page import DOCS, filled, put
from benchmarks.cluster_size import Etcd, stored_pod
from policies.kube.json import Json
from policies.probes.observed import OBSERVED
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import NAMESPACE, SERVICE_ACCOUNT, Chassis
from webhook.kube.leader_election import NAME as LEASE

PODS = int(os.environ.get("PODS", "10000"))
SECONDS = float(os.environ.get("SECONDS", "60"))
PODS_A_NODE = 100
PODS_A_WORKLOAD = 5
NAMESPACES = 50
PULLERS = 10
"""Every tenth pod has one."""
MODELS = 5
"""Of each puller."""
STATUS_PORT = 9081
ADDRESSES = "10.200.0.0/16"
"""The pods' addresses, in a network namespace where they lead to this process."""
PATIENCE = 600.0
"""Seconds for all pods to run, and for all pullers to be asked: each is, within SETTLED_SECONDS."""
LAST_WRITE = 75.0
"""Seconds after which the leader has written what it saw: it writes once a minute."""
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}"
INSIDE = "CHASSIS_BENCHMARK_NAMESPACE"


# --- objects -----------------------------------------------------------------------------------------------


def stored(number: int) -> tuple[str, bytes]:
    """A pod's key and text in etcd: bound, and not started yet."""
    workload = number // PODS_A_WORKLOAD
    namespace, name = f"team-{workload % NAMESPACES}", f"llm-{workload}-5d4f-{number}"
    probe = {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 5, "failureThreshold": 100}
    containers: list[Json] = [{"name": "server", "image": "vllm/vllm-openai:v0.9.1", "startupProbe": probe}]
    if number % PULLERS == 0:
        containers.append({"name": "puller", "image": "puller", "command": ["chassis-puller"]})
    owner: Json = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": f"llm-{workload}-5d4f",
        "uid": f"eeeeeeee-0000-4000-8000-{workload:012x}",
        "controller": True,
    }
    return stored_pod(
        number,
        {
            "name": name,
            "namespace": namespace,
            "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "labels": {"app": f"llm-{workload}", "pod-template-hash": "5d4f"},
            "ownerReferences": [owner],
        },
        {"nodeName": f"node-{number // PODS_A_NODE}", "containers": containers},
        {"phase": "Pending"},
    )


class Pages:
    """The status pages of all pullers."""

    def __init__(self) -> None:
        self.asked = 0
        self._failing: set[str] | None = None
        pages = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                pages.asked += 1
                if pages._failing is not None:
                    pages._failing.add(self.connection.getsockname()[0])
                body = pages.page(pages.asked)
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("0.0.0.0", STATUS_PORT), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def fail(self) -> None:
        """From now on all models fail."""
        self._failing = set()

    @property
    def failing(self) -> int:
        """The pullers that have said so."""
        return len(self._failing or ())

    def page(self, number: int) -> bytes:
        if self._failing is None:
            return orjson.dumps({"models": [], "counts": {"Loaded": MODELS}})
        models = [
            {
                "name": f"model-{each}",
                "state": "Failed",
                "reason": f"Reason{number}",
                "message": "the storage answers 503.",
            }
            for each in range(MODELS)
        ]
        return orjson.dumps({"models": models, "counts": {"Failed": MODELS}})

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


# --- what the audit log shows ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Writes:
    """Writes of the webhook: how many of each resource, and when (seconds since the epoch, in order)."""

    counts: Counter[str] = field(default_factory=Counter)
    times: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def read(cls, lines: Sequence[bytes], since: float = 0.0) -> Writes:
        """Those of an audit log, from a time on."""
        times: dict[str, list[float]] = {}
        for line in lines:
            entry = orjson.loads(line)
            if entry["user"]["username"] != ACCOUNT or entry["verb"] not in _WRITES:
                continue
            at = datetime.fromisoformat(entry["requestReceivedTimestamp"].replace("Z", "+00:00")).timestamp()
            if at >= since:
                times.setdefault(entry.get("objectRef", {}).get("resource", ""), []).append(at)
        return cls(
            Counter({resource: len(each) for resource, each in times.items()}),
            {resource: sorted(each) for resource, each in times.items()},
        )

    @property
    def busiest(self) -> int:
        """The most writes in any 60 seconds."""
        times = sorted(at for each in self.times.values() for at in each)
        return max((bisect_right(times, at + 60) - number for number, at in enumerate(times)), default=0)

    def pauses(self, resource: str) -> str:
        """How often a resource was written, and the shortest time between two writes."""
        times = self.times.get(resource, [])
        if len(times) < 2:
            return "once" if times else "never"
        shortest = min(later - at for at, later in pairwise(times))
        return f"{len(times)} times, at least {shortest:.0f} s apart"


_WRITES = frozenset({"create", "update", "patch", "delete"})


def _writes(control_plane: ControlPlane, since: float = 0.0) -> Writes:
    return Writes.read(control_plane.audit_log.read_bytes().splitlines(), since)


# --- measuring ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Phase:
    """What was measured in one phase."""

    name: str
    seconds: float
    leader_cpu: float
    other_cpu: float
    asked: int
    writes: Writes
    starts: int

    @property
    def row(self) -> str:
        counts = self.writes.counts
        return (
            f"| {self.name} | {self.seconds:.0f} | {self.leader_cpu:.2f} s | {self.other_cpu:.2f} s "
            f"| {self.asked:,} | {counts.total()} | {counts['events']} | {counts['leases']} "
            f"| {counts['configmaps']} | {self.writes.busiest} | {self.starts:,} |"
        )


def _all_run(control_plane: ControlPlane) -> bool:
    """Whether no pod is left that does not run; those of the webhook's Deployment do not count."""
    selector = f"status.phase%3DPending,metadata.namespace%21%3D{NAMESPACE}"
    path = f"/api/v1/pods?limit=1&fieldSelector={selector}"
    return not control_plane.api.request("GET", path, timeout=120).body["items"]


def _starts(control_plane: ControlPlane) -> int:
    """The starts in the record."""
    for item in control_plane.api.items("configmaps", NAMESPACE):
        if item["metadata"]["name"] == OBSERVED:
            entries = (json.loads(text) for text in item.get("data", {}).values())
            return sum(entry.get("starts", 0) for each in entries for entry in each.values())
    return 0


def _leader(control_plane: ControlPlane, replicas: list[Chassis]) -> Chassis:
    """The replica that holds the Lease."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for item in control_plane.api.items("leases", NAMESPACE):
            holder = item["spec"].get("holderIdentity", "") if item["metadata"]["name"] == LEASE else ""
            for replica in replicas:
                if any(holder.endswith(f"-{pid}") for pid in load.family(replica.process.pid)):
                    return replica
        time.sleep(1)
    raise SystemExit("no replica leads")


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not so after {PATIENCE:.0f} s: {what}")
        time.sleep(2)


def _phases(control_plane: ControlPlane, pages: Pages, leader: Chassis, other: Chassis) -> Iterator[Phase]:
    families = load.family(leader.process.pid), load.family(other.process.pid)
    marks: list[float] = []

    def begin() -> None:
        marks[:] = [time.time(), pages.asked, *(load.used(each) for each in families)]

    def end(name: str) -> Phase:
        at, asked, led, rest = marks
        phase = Phase(
            name,
            time.time() - at,
            load.used(families[0]) - led,
            load.used(families[1]) - rest,
            pages.asked - int(asked),
            _writes(control_plane, at),
            _starts(control_plane),
        )
        print(f"  {phase.row}", flush=True)
        return phase

    begin()
    control_plane.start_kwok(ADDRESSES.replace(".0/", ".1/"))
    _wait(lambda: _all_run(control_plane), "all pods run")
    _wait(lambda: pages.asked >= PODS // PULLERS, "all pullers were asked")
    time.sleep(LAST_WRITE)
    yield end("pods become ready, models are loaded")
    control_plane.end("kwok")
    begin()
    time.sleep(SECONDS)
    yield end("nothing changes")
    pages.fail()
    _wait(lambda: pages.failing == PODS // PULLERS, "all pullers were asked again")
    begin()
    time.sleep(SECONDS)
    yield end("models fail, with new reasons")


def _inside() -> None:
    for command in ("link set lo up", f"route add local {ADDRESSES} dev lo"):
        subprocess.run(["ip", *command.split()], check=True)
    pages = Pages()
    with (
        tempfile.TemporaryDirectory() as directory,
        ControlPlane(Path(directory, "cluster")) as control_plane,
    ):
        replicas = [Chassis(control_plane), Chassis(control_plane)]
        replicas[0].install()
        for number in range(-(-PODS // PODS_A_NODE)):
            control_plane.add_node(f"node-{number}")
        for number in range(NAMESPACES):
            control_plane.create_namespace(f"team-{number}")
        # These would begin to work on the pods: it is the webhook that is measured.
        control_plane.end("kube-scheduler", "kube-controller-manager", "kwok")
        Etcd(control_plane.etcd_url).write(stored(number) for number in range(PODS))
        try:
            replicas[0].start()
            replicas[1].exec()
            replicas[1].process.wait_until(replicas[1].ready, 120)
            leader = _leader(control_plane, replicas)
            (other,) = (each for each in replicas if each is not leader)
            load.settle(load.family(leader.process.pid), 60)  # both have read the cluster
            phases = list(_phases(control_plane, pages, leader, other))
            writes = _writes(control_plane)
        finally:
            for replica in replicas:
                replica.stop()
            pages.close()
    text = page(phases, writes)
    put("leader", text, DOCS / "scaling.md")
    print(text)


def page(phases: Sequence[Phase], writes: Writes) -> str:
    """The section; `writes`: all of the run."""
    return filled(
        "leader",
        pods=PODS,
        workloads=PODS // PODS_A_WORKLOAD,
        pullers=PODS // PULLERS,
        models=PODS // PULLERS * MODELS,
        rows="\n".join(phase.row for phase in phases),
        busiest=writes.busiest,
        record=writes.pauses("configmaps"),
    )


def main() -> None:
    if INSIDE in os.environ:
        _inside()
        return
    command = ["unshare", "--net", sys.executable, "-m", "benchmarks.leader"]
    subprocess.run(command, check=True, env=os.environ | {INSIDE: "1"})


if __name__ == "__main__":
    main()
