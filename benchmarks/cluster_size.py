"""One replica next to a real kube-apiserver, in clusters of three sizes.

The time of a start and the bytes that the API server sends for it, the memory afterwards, and the cost of a
create and of the heartbeats of the Nodes. The objects are those of `scale`, and pods. They are written
straight into etcd, many in one transaction: through the API, 200,000 objects would take hours, and every
reader sees the same. No kubelet runs; in its place the benchmark writes a heartbeat into each Node's status
every five minutes, as kubelets of idle nodes do.

Every size has its own control plane. Writes its section of docs/scaling.md and the raw numbers into
benchmarks/peers/cluster_size.json, where sizes that were not measured again stay. Environment: SIZES (how
many times the smallest cluster), SECONDS of heartbeats.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

import orjson

from benchmarks import _load as load
from benchmarks._page import DOCS, PEERS, write
from benchmarks._reviews import Workloads
from benchmarks.scale import COUNTS, made
from policies.core.resources import Resource
from policies.kube.json import Json
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import Chassis

RAW = PEERS / "cluster_size.json"
SIZES = [int(each) for each in os.environ.get("SIZES", "1,10,100").split(",")]
SECONDS = float(os.environ.get("SECONDS", "30"))
PODS = 1000
"""In the smallest cluster."""
CREATES, RATE = 200, 20
HEARTBEAT = 300
"""Seconds between two statuses of an idle Node: the kubelet's nodeStatusReportFrequency."""
TOGETHER = 100
"""Writes of one transaction; etcd takes 128."""
PATIENCE = 900
"""Seconds, for the largest size on a busy machine."""
BUSY = 2.0 * (os.cpu_count() or 1)
"""A load average above which times by the clock are not published: they are those of the other processes."""
NAMESPACE = "bench"
CONTROLLER = ("kube-system", "replicaset-controller")
STORED = {
    Resource.NODES: ("v1", "Node", "minions"),
    Resource.SERVICES: ("v1", "Service", "services/specs"),
    Resource.WORKLOADS: ("apps/v1", "Deployment", "deployments"),
    Resource.CLAIMS: ("v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    Resource.AUTOSCALERS: ("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    Resource.BUDGETS: ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Resource.QUOTAS: ("v1", "ResourceQuota", "resourcequotas"),
    Resource.LIMIT_RANGES: ("v1", "LimitRange", "limitranges"),
    Resource.NAMESPACES: ("v1", "Namespace", "namespaces"),
    Resource.MODEL_CONFIGS: ("v1", "ConfigMap", "configmaps"),
}
"""Version and kind of each, and where etcd has them below /registry."""
SAMPLE = re.compile(r"^(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    """The figures of one size."""

    nodes: int
    services: int
    pods: int
    objects_mb: float
    """JSON of all that the webhook lists, with the pods."""
    sent_mb: float
    """What the API server sent for the lists, compressed where it does that."""
    lists: int
    start_seconds: float
    """From exec to ready and trusted."""
    read_seconds: float
    """From exec until everything is read, the pods of the leader included."""
    start_cpu: float
    """Until then."""
    server_cpu: float
    """Of kube-apiserver, for the lists."""
    rss_mib: float
    pss_mib: float
    peak_mib: float
    """The most that the largest process had resident."""
    mutate_ms: float
    validate_ms: float
    p50_ms: float
    p99_ms: float
    create_cpu_ms: float
    events: float
    """Watch events of Nodes a second."""
    events_kb: float
    """A second."""
    events_cpu_ms: float
    """CPU of the webhook a second, above that of a quiet cluster."""
    quiet_cpu_ms: float
    load: float
    """The machine's load average over 5 minutes."""


# --- objects -----------------------------------------------------------------------------------------------


class Etcd:
    """Writes objects by etcd's own HTTP gateway, in the form in which an API server reads them."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)

    def write(self, objects: Iterator[tuple[str, bytes]]) -> int:
        """Write all; the bytes that they are."""
        total, some = 0, []
        for key, value in objects:
            total += len(value)
            some.append({"requestPut": {"key": _text(key.encode()), "value": _text(value)}})
            if len(some) == TOGETHER:
                self._send(some)
                some = []
        if some:
            self._send(some)
        return total

    def _send(self, puts: list[Json]) -> None:
        self._connection.request("POST", "/v3/kv/txn", orjson.dumps({"success": puts}))
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise SystemExit(f"etcd: {answer.status} {text.decode(errors='replace')}")


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _stored(resource: Resource, number: int, beat: str = "") -> tuple[str, bytes]:
    """An object's key and text in etcd; `beat` is the time of a Node's last heartbeat."""
    version, kind, place = STORED[resource]
    item = {"apiVersion": version, "kind": kind, **made(resource, number)}
    metadata = item["metadata"]
    metadata.pop("resourceVersion", None)
    metadata["uid"] = f"{list(STORED).index(resource):08x}-0000-4000-8000-{number:012x}"
    if resource is Resource.WORKLOADS:
        item["spec"]["template"]["spec"]["containers"][0]["image"] = "registry.example/team/app:1"
    if resource is Resource.NAMESPACES:
        metadata["name"] = f"team-{number}"
        item |= {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
    if beat:
        for condition in item["status"]["conditions"]:
            condition["lastHeartbeatTime"] = beat
    where = "/".join(each for each in (metadata.get("namespace"), metadata["name"]) if each)
    return f"/registry/{place}/{where}", orjson.dumps(item)


def _pod(number: int, nodes: int) -> tuple[str, bytes]:
    metadata = {
        "name": f"app-{number}",
        "namespace": f"team-{number % 100}",
        "creationTimestamp": "2026-01-05T09:30:00Z",
        "labels": {"app": f"app-{number // 3}"},
    }
    container = {
        "name": "a",
        "image": "registry.example/team/app:1",
        "env": [{"name": "A", "value": "x" * 500}],
    }
    address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    return stored_pod(
        number,
        metadata,
        {"nodeName": f"node-{number % nodes}", "containers": [container]},
        {"phase": "Running", "podIP": address},
    )


def stored_pod(number: int, metadata: Json, spec: Json, status: Json) -> tuple[str, bytes]:
    """A pod's key and text in etcd."""
    metadata["uid"] = f"ffffffff-0000-4000-8000-{number:012x}"
    item = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}
    return f"/registry/pods/{metadata['namespace']}/{metadata['name']}", orjson.dumps(item)


def _fill(control_plane: ControlPlane, etcd: Etcd, size: int) -> int:
    """Write a cluster of this size; the bytes of what the webhook lists of it."""
    listed = 0
    for resource, count in COUNTS.items():
        listed += etcd.write(_stored(resource, number) for number in range(count * size))
    nodes, pods = COUNTS[Resource.NODES] * size, PODS * size
    listed += etcd.write(_pod(number, nodes) for number in range(pods))
    for path, wanted in (("nodes", nodes), ("pods", pods)):
        _await(control_plane, path, wanted)
    return listed


def _await(control_plane: ControlPlane, path: str, wanted: int) -> None:
    """Until the API server's own cache has all of them.

    A consistent read waits for a revision, and the writes of a transaction share one.
    """
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        answer = control_plane.api.request("GET", f"/api/v1/{path}?limit=1", timeout=600).body
        found = 1 + answer["metadata"].get("remainingItemCount", 0)
        if found >= wanted:
            return
        time.sleep(0.2)
    raise SystemExit(f"{found} of {wanted} {path}")


# --- measuring ---------------------------------------------------------------------------------------------


def _samples(control_plane: ControlPlane, name: str, **labels: str) -> dict[str, float]:
    """The values of a metric of the API server, by their labels."""
    with control_plane.api.connection(120) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return {
        found[2]: float(found[3])
        for found in SAMPLE.finditer(text)
        if found[1] == name and all(each in found[2] for each in wanted)
    }


def _grown(before: dict[str, float], after: dict[str, float]) -> float:
    return sum(value - before.get(labels, 0) for labels, value in after.items())


def _waited(control_plane: ControlPlane) -> tuple[dict[str, float], dict[str, float]]:
    name = "apiserver_admission_webhook_admission_duration_seconds"
    return _samples(control_plane, f"{name}_sum"), _samples(control_plane, f"{name}_count")


def _milliseconds(path: str, before: Sequence[dict[str, float]], after: Sequence[dict[str, float]]) -> float:
    """What a call of the entries for pods took the API server."""

    def of(samples: dict[str, float]) -> dict[str, float]:
        return {
            labels: value for labels, value in samples.items() if f'name="{path}.mlchassis.dev"' in labels
        }

    seconds, calls = (_grown(of(old), of(new)) for old, new in zip(before, after, strict=True))
    return seconds / calls * 1e3


def _peak(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def _creates(control_plane: ControlPlane) -> list[float]:
    headers = {"Host": "kubernetes", **control_plane.api_as_service_account(*CONTROLLER).headers}
    _, pods = Workloads(7).replicas(CREATES, 0)
    bodies = [orjson.dumps({**pod, "metadata": {**pod["metadata"], "namespace": NAMESPACE}}) for pod in pods]
    path = f"api/v1/namespaces/{NAMESPACE}/pods"
    return load.paced(control_plane.port, path, headers, bodies, RATE, 600).latencies


def _beats(etcd: Etcd, nodes: int, seconds: float) -> None:
    """The Nodes' heartbeats for so long, one after the other."""
    pause, began, number = HEARTBEAT / nodes, time.monotonic(), 0
    while (due := began + number * pause) < began + seconds:
        time.sleep(max(0.0, due - time.monotonic()))
        beat = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        etcd.write(iter([_stored(Resource.NODES, number % nodes, beat)]))
        number += 1


def _one(size: int) -> Result:
    with (
        tempfile.TemporaryDirectory() as directory,
        ControlPlane(Path(directory, "cluster")) as control_plane,
    ):
        control_plane.create_namespace(NAMESPACE)
        chassis = Chassis(control_plane)
        chassis.install()
        control_plane.token(*CONTROLLER)
        # These would begin to work on the objects: it is the webhook that is measured.
        control_plane.end("kube-scheduler", "kube-controller-manager", "kwok")
        etcd = Etcd(control_plane.etcd_url)
        began = time.monotonic()
        listed = _fill(control_plane, etcd, size)
        print(f"  {size}: written in {time.monotonic() - began:.0f} s", flush=True)
        try:
            result = _measured(control_plane, chassis, etcd, size, listed)
            most = [_peak(pid) for pid in control_plane.process_ids("kube-apiserver", "etcd")]
            print(f"  {size}: kube-apiserver and etcd had {sum(most):,.0f} MiB at most", flush=True)
            return result
        finally:
            chassis.stop()


def _watches_of_pods(control_plane: ControlPlane) -> float:
    """How many watches of all pods are open."""
    return sum(_samples(control_plane, "apiserver_longrunning_requests", resource="pods").values())


def _measured(control_plane: ControlPlane, chassis: Chassis, etcd: Etcd, size: int, listed: int) -> Result:
    nodes = COUNTS[Resource.NODES] * size
    server = control_plane.process_ids("kube-apiserver")
    sizes = "apiserver_response_sizes"
    sent, answers = (_samples(control_plane, f"{sizes}_{each}", verb="LIST") for each in ("sum", "count"))
    load.settle(server, 120)  # the written objects have been read, so that only the start below is measured
    watches = _watches_of_pods(control_plane)
    server_before, began = load.used(server), time.perf_counter()
    chassis.start()
    start = time.perf_counter() - began
    family = load.family(chassis.process.pid)
    for resource in STORED:
        chassis.wait_metric("chassis_facts_synced", 1, PATIENCE, resource=resource.value)
    chassis.process.wait_until(lambda: _watches_of_pods(control_plane) > watches, PATIENCE)
    read = time.perf_counter() - began
    load.settle(family, 120)
    start_cpu, server_cpu = load.used(family), load.used(server) - server_before
    sent_mb = _grown(sent, _samples(control_plane, f"{sizes}_sum", verb="LIST")) / 1e6
    lists = _grown(answers, _samples(control_plane, f"{sizes}_count", verb="LIST"))
    print(f"  {size}: ready in {start:.1f} s, all read in {read:.1f} s, {start_cpu:.1f} CPU s", flush=True)
    waited, cpu = _waited(control_plane), load.used(family)
    latencies = _creates(control_plane)
    create_cpu, after = load.used(family) - cpu, _waited(control_plane)
    quiet = load.used(family)
    time.sleep(SECONDS / 2)
    quiet = (load.used(family) - quiet) / SECONDS * 2
    events, event_bytes = (
        _samples(control_plane, f"apiserver_watch_events_sizes_{each}", resource="nodes")
        for each in ("count", "sum")
    )
    cpu = load.used(family)
    _beats(etcd, nodes, SECONDS)
    beaten = (load.used(family) - cpu) / SECONDS
    now = [
        _samples(control_plane, f"apiserver_watch_events_sizes_{each}", resource="nodes")
        for each in ("count", "sum")
    ]
    memory = [load.memory(pid) for pid in family]
    return Result(
        nodes=nodes,
        services=COUNTS[Resource.SERVICES] * size,
        pods=PODS * size,
        objects_mb=listed / 1e6,
        sent_mb=sent_mb,
        lists=round(lists),
        start_seconds=start,
        read_seconds=read,
        start_cpu=start_cpu,
        server_cpu=server_cpu,
        rss_mib=sum(each["Rss"] for each in memory),
        pss_mib=sum(each["Pss"] for each in memory),
        peak_mib=max(map(_peak, family)),
        mutate_ms=_milliseconds("mutate", waited, after),
        validate_ms=_milliseconds("validate", waited, after),
        p50_ms=latencies[len(latencies) // 2] * 1e3,
        p99_ms=latencies[len(latencies) * 99 // 100] * 1e3,
        create_cpu_ms=create_cpu / len(latencies) * 1e3,
        events=_grown(events, now[0]) / SECONDS,
        events_kb=_grown(event_bytes, now[1]) / SECONDS / 1e3,
        events_cpu_ms=(beaten - quiet) * 1e3,
        quiet_cpu_ms=quiet * 1e3,
        load=os.getloadavg()[1],
    )


# --- the page ----------------------------------------------------------------------------------------------


def _start_row(it: Result) -> str:
    times = (_wall(it, f"{each:.1f} s") for each in (it.start_seconds, it.read_seconds))
    return (
        f"| {it.nodes:,} | {it.services:,} | {it.pods:,} "
        f"| {it.objects_mb:,.1f} MB | {it.sent_mb:,.1f} MB in {it.lists} "
        f"| {' | '.join(times)} | {it.start_cpu:.1f} s | {it.server_cpu:.1f} s "
        f"| {it.pss_mib:.0f} MiB | {it.peak_mib:.0f} MiB |"
    )


def _run_row(it: Result) -> str:
    calls = f"{it.mutate_ms:.1f} + {it.validate_ms:.1f} ms"
    times = (_wall(it, each) for each in (calls, f"{it.p50_ms:.1f} ms", f"{it.p99_ms:.1f} ms"))
    return (
        f"| {it.nodes:,} | {' | '.join(times)} "
        f"| {it.create_cpu_ms:.1f} ms | {it.events:.1f} | {it.events_kb:,.0f} kB "
        f"| {it.events_cpu_ms:.1f} ms | {it.quiet_cpu_ms:.1f} ms |"
    )


def _wall(it: Result, time: str) -> str:
    """A time by the clock measures the webhook only if a CPU was free for it."""
    return time if it.load <= BUSY else "busy"


def main() -> None:
    known = (
        {int(size): Result(**it) for size, it in json.loads(RAW.read_text()).items()} if RAW.exists() else {}
    )
    for size in SIZES:
        known[size] = _one(size)
        print(f"  {known[size]}", flush=True)
        RAW.write_text(json.dumps({each: asdict(known[each]) for each in sorted(known)}, indent=1) + "\n")
    results = [known[size] for size in sorted(known)]
    write(
        "cluster_size",
        DOCS / "scaling.md",
        starts="\n".join(map(_start_row, results)),
        runs="\n".join(map(_run_row, results)),
        creates=CREATES,
        rate=RATE,
        busy=f"{BUSY:g}",
        loads=", ".join(f"{it.load:.0f}" for it in results),
    )


if __name__ == "__main__":
    main()
