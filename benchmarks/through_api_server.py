"""Creates a second through a real kube-apiserver: without a webhook, with ours, with the one in Go, and with
one that allows all.

One client creates pods one after the other, as the controller of ReplicaSets. Each way has a namespace of its
own on one API server, so that they take turns within a round; a round gives one ratio. Ours is installed from
the manifests, the others under its entries for pods. Writes its section of docs/benchmarks.md.
"""

from __future__ import annotations

import asyncio
import http.client
import multiprocessing
import os
import re
import ssl
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import orjson
import uvloop

from benchmarks import _peer
from benchmarks._page import spread, write
from benchmarks._reviews import Workloads
from policies.kube.json import Json
from tests.e2e.controlplane import HOST, ControlPlane
from tests.e2e.install import Chassis
from tests.e2e.processes import free_port

ROUNDS = int(os.environ.get("ROUNDS", "9"))
CREATES = int(os.environ.get("CREATES", "150"))
"""Of one way in one round."""
TURN = 25
"""After so many creates it is another way's turn, so that all meet the same noise."""
NONE, FLOOR, OURS, GO = WAYS = ("no webhook", "one that allows all", "ML Chassis", "Go")
NAMESPACES = {NONE: "bench-none", FLOOR: "bench-floor", OURS: "bench-ours", GO: "bench-go"}
"""The pods of a way; each webhook has another namespaceSelector."""
DOMAINS = {FLOOR: "floor.example.com", GO: "go.example.com", OURS: "mlchassis.dev"}
"""How the names of a webhook's entries end."""
CONTROLLER = ("kube-system", "replicaset-controller")
ALLOWED = (
    b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"%s","allowed":true}}'
)
SECONDS = re.compile(
    r'apiserver_admission_webhook_admission_duration_seconds_(sum|count)\{.*name="([^"]+)".*\} (\S+)'
)


@dataclass(frozen=True)
class Scenario:
    name: str
    seen: float
    dry_run: bool


SCENARIOS = (
    Scenario("90 % seen", 0.9, False),
    Scenario("all new", 0, False),
    Scenario("90 % seen, dry run", 0.9, True),
    Scenario("all new, dry run", 0, True),
)


@dataclass
class Found:
    """What each round gave."""

    rates: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    """Creates a second."""
    waited: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds that one call of a webhook took the API server, with all of its work for the call."""

    def ratios(self, way: str) -> list[float]:
        return [it / none for it, none in zip(self.rates[way], self.rates[NONE], strict=True)]


# --- the cluster -------------------------------------------------------------------------------------------


class _Allows(asyncio.Protocol):
    """A webhook that reads of a review its length and its uid, and allows it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._come = cast(asyncio.WriteTransport, transport), b""

    def data_received(self, data: bytes) -> None:
        self._come += data
        head, _, body = self._come.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        if length is None or len(body) < int(length[1]):
            return
        self._come = b""
        uid = re.search(rb'"uid":"([^"]+)"', body)
        assert uid is not None
        answer = ALLOWED % uid[1]
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))


def _allow(port: int, scratch: Path) -> None:
    async def main() -> None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(scratch / "tls.crt", scratch / "tls.key")
        server = await asyncio.get_running_loop().create_server(_Allows, HOST, port, ssl=tls)
        await server.serve_forever()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def _start(control_plane: ControlPlane, scratch: Path, peer: Path, stack: ExitStack) -> None:
    """The three webhooks, each called for the pods of another namespace."""
    for way, namespace in NAMESPACES.items():
        labels = {} if way is OURS else {"mlchassis.dev/admission": "disabled"}
        control_plane.create_namespace(namespace, labels)
    chassis = Chassis(control_plane)
    chassis.install()
    chassis.start()
    stack.callback(chassis.stop)
    ca, port = _peer.certify(scratch), free_port()
    _, go = _peer.started(peer, scratch, stack)
    forked = multiprocessing.get_context("fork")
    floor = forked.Process(target=_allow, args=(port, scratch), daemon=True)
    floor.start()
    stack.callback(floor.kill)
    for way, url in {GO: go, FLOOR: f"https://{HOST}:{port}"}.items():
        _peer.register(control_plane.api, url, ca, DOMAINS[way], NAMESPACES[way])
    # No controller collects pods without an owner or schedules them: that is CPU, and not measured here.
    control_plane.end("kube-scheduler", "kube-controller-manager", "kwok")


# --- measuring ---------------------------------------------------------------------------------------------


class _Client:
    """Creates pods on one connection."""

    def __init__(self, connection: http.client.HTTPSConnection, headers: dict[str, str]) -> None:
        self._connection = connection
        self._headers = {**headers, "Content-Type": "application/json"}

    def create(self, namespace: str, pods: Sequence[Json], *, dry_run: bool) -> float:
        """The seconds that it takes."""
        bodies = [_sent(pod, namespace) for pod in pods]
        path = f"/api/v1/namespaces/{namespace}/pods" + ("?dryRun=All" if dry_run else "")
        began = time.perf_counter()
        for body in bodies:
            self._connection.request("POST", path, body, self._headers)
            answer = self._connection.getresponse()
            text = answer.read()
            if answer.status >= 400:
                raise SystemExit(f"POST {path}: {answer.status} {text.decode(errors='replace')}")
        return time.perf_counter() - began


def _waited(control_plane: ControlPlane) -> dict[str, tuple[float, float]]:
    """Seconds that the calls of each webhook have taken so far, and how many those were."""
    with control_plane.api.connection() as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    sums: dict[str, list[float]] = {}
    for line in text.splitlines():
        if told := SECONDS.match(line):
            sums.setdefault(told[2], [0, 0])[told[1] == "count"] += float(told[3])
    return {name: (seconds, calls) for name, (seconds, calls) in sums.items()}


def _round(control_plane: ControlPlane, client: _Client, scenario: Scenario, seed: int, found: Found) -> None:
    known, measured = Workloads(seed).replicas(CREATES, scenario.seen)
    for namespace in NAMESPACES.values():
        client.create(namespace, known, dry_run=True)
    seconds, before = dict.fromkeys(WAYS, 0.0), _waited(control_plane)
    for number in range(0, CREATES, TURN):
        turn = (seed + number // TURN) % len(WAYS)
        for way in (*WAYS[turn:], *WAYS[:turn]):  # none is always the first
            pods = measured[number : number + TURN]
            seconds[way] += client.create(NAMESPACES[way], pods, dry_run=scenario.dry_run)
    for way in WAYS:
        found.rates[way].append(CREATES / seconds[way])
    for name, (waited, calls) in _waited(control_plane).items():
        earlier = before.get(name, (0, 0))
        if calls > earlier[1]:
            each = (waited - earlier[0]) / (calls - earlier[1])
            found.waited.setdefault(name, []).append(each * 1e3)
    for namespace in NAMESPACES.values():
        control_plane.api.request("DELETE", f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")


def _sent(pod: Json, namespace: str) -> bytes:
    return orjson.dumps({**pod, "metadata": {**pod["metadata"], "namespace": namespace}})


def _measured(control_plane: ControlPlane) -> dict[str, Found]:
    found = {scenario.name: Found() for scenario in SCENARIOS}
    api = control_plane.api_as_service_account(*CONTROLLER)
    with api.connection() as connection:
        client = _Client(connection, api.headers)
        for scenario in SCENARIOS:
            _round(control_plane, client, scenario, ROUNDS, Found())  # until all are warm
        for number in range(ROUNDS):
            for scenario in SCENARIOS:
                _round(control_plane, client, scenario, number, found[scenario.name])
            print(f"  round {number + 1} of {ROUNDS}", flush=True)
    return found


# --- the page ----------------------------------------------------------------------------------------------


def _row(scenario: Scenario, found: Found) -> str:
    cells = [f"{statistics.median(found.rates[NONE]):,.0f}"]
    cells += [spread(found.ratios(way)) for way in DOMAINS]
    for domain in DOMAINS.values():
        waits = (statistics.median(found.waited[f"{path}.{domain}"]) for path in ("mutate", "validate"))
        cells.append(" + ".join(f"{wait:.1f}" for wait in waits))
    return f"| {scenario.name} | {' | '.join(cells)} |"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        scratch = Path(directory)
        peer = _peer.built(scratch)
        if peer is None:
            print("Go is not installed, so the peer is not built and there is no measurement.")
            return
        control_plane = stack.enter_context(ControlPlane(scratch / "cluster"))
        _start(control_plane, scratch, peer, stack)
        found = _measured(control_plane)
    rows = "\n".join(_row(scenario, found[scenario.name]) for scenario in SCENARIOS)
    write("through_api_server", rows=rows, creates=CREATES, rounds=ROUNDS)


if __name__ == "__main__":
    main()
