"""The puller on a node: a real MLServer in a pod, the sidecar that the webhook injects, models in S3."""

from __future__ import annotations

import os
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.e2e.node.cluster import RealNode
from tests.e2e.node.reaper import hierarchies
from tests.e2e.node.webhook import Webhook
from tests.e2e.status import is_ready
from tests.puller.fakes import FaultStore
from tests.realnode import evidence
from tests.realnode.arms import PATIENCE, Arm
from tests.realnode.experiments.disruption import evict
from tests.realnode.experiments.models import Shop, deployment, entry, open_shop, s3

pytestmark = pytest.mark.realnode
PROBE_PERIOD = 5
"""Seconds between the readiness probes of the sidecar."""


@pytest.fixture
def store() -> Iterator[FaultStore]:
    """S3 on the node, with models in it."""
    with s3() as running:
        yield running


@pytest.fixture
def shop(node: RealNode, webhook: Webhook, namespace: str, store: FaultStore) -> Shop:
    """Everything created, without waiting."""
    restricted = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    node.api.patch("namespaces", namespace, restricted)
    return open_shop(Arm(node, namespace, webhook=True), store, deployment())


def puller(shop: Shop) -> int | None:
    """The process in the sidecar that does the work: the child of the other. None between two of them."""
    pids = shop.arm.node.pids(shop.pod, "chassis-puller")
    with suppress(FileNotFoundError):
        return next((pid for pid in pids if parent_of(pid) in pids), None)
    return None


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def outlives(shop: Shop, end: Callable[[Shop], None]) -> None:
    """End the puller, and watch the pod until another one does its work and the kubelet has probed it: it
    stays ready, it answers through its Service, and no container of it is started again."""
    before, old = shop.restarts(), puller(shop)
    status = f"http://{shop.pod['status']['podIP']}:9081/readyz"
    end(shop)
    lost = unready = 0
    checked = began = time.monotonic()
    while time.monotonic() < checked + 2 * PROBE_PERIOD:
        if puller(shop) in (old, None) or not answers(status):
            checked = time.monotonic()
        lost += shop.predict("triple") != 21
        unready += not is_ready(shop.pod)
        assert time.monotonic() - began < PATIENCE
    assert (lost, unready) == (0, 0)
    assert shop.restarts() == before


def killed(shop: Shop) -> None:
    pid = puller(shop)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def out_of_memory(shop: Shop) -> None:
    """Let the sidecar have no more memory than it uses, and send it requests that stay open, until the kernel
    kills a process of it."""
    lines = Path(f"/proc/{puller(shop)}/cgroup").read_text().splitlines()
    (group,) = (line.split(":", 2)[2] for line in lines if "memory" in line.split(":")[1].split(","))
    # One hierarchy may be mounted in several places, the one in our namespace among them.
    places = (it / group.lstrip("/") for it in hierarchies("cgroup") if it.name == "memory")
    memory = next(place for place in places if place.is_dir())
    limit, control = memory / "memory.limit_in_bytes", memory / "memory.oom_control"
    before, kills = limit.read_text(), fields(control)["oom_kill"]
    address = shop.pod["status"]["podIP"], 9081
    with ExitStack() as requests:

        def squeezed() -> bool:
            resident = fields(memory / "memory.stat")["total_rss"]
            for spare in range(0, 64 << 20, 1 << 20):
                with suppress(OSError):  # it uses more, which can't be taken back
                    limit.write_text(str(resident + spare))
                    break
            with suppress(OSError):  # it has ended
                for _ in range(20):
                    request = requests.enter_context(socket.create_connection(address, timeout=5))
                    request.sendall(b"GET /metrics HTTP/1.1\r\nA: " + b"a" * 4000)
            return fields(control)["oom_kill"] > kills

        try:
            shop.arm.wait("killed for its memory", squeezed)
        finally:
            limit.write_text(before)


def fields(file: Path) -> dict[str, int]:
    """The numbers in a file of a cgroup, by their names."""
    return {name: int(value) for name, value in (line.split() for line in file.read_text().splitlines())}


def answers(url: str) -> bool:
    """Whether a GET is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def test_models_follow_their_config_map_through_every_failure(shop: Shop) -> None:
    shop.until("the first model, from nothing", "double", 14)
    first = shop.pod

    shop.configure(entry("double", 20))
    shop.until("another version of a model", "double", 140)
    shop.configure(entry("double", 20), entry("triple", 3))
    shop.until("one more model", "triple", 21)
    shop.configure(entry("triple", 3))
    shop.until("a model removed", "double", None)
    assert shop.predict("triple") == 21, "the others are let alone"

    outlives(shop, killed)
    outlives(shop, out_of_memory)
    shop.configure(entry("triple", 3), entry("double", 2))
    shop.until("an edit, the puller having been killed", "double", 14)
    shop.configure(entry("triple", 3))
    shop.until("a model removed, by another puller", "double", None)

    before = shop.restarts()
    sidecar = next(name for name in before if "puller" in name)
    assert shop.arm.node.signal(signal.SIGKILL, first, "chassis-puller")
    direct = f"{first['status']['podIP']}:8080"  # a pod of which one container is not running is not ready
    lost = 0
    began = time.monotonic()
    while shop.restarts()[sidecar] == before[sidecar]:
        lost += shop.predict("triple", direct) != 21
        assert time.monotonic() - began < 120
    assert lost == 0, "the server serves on while its sidecar is restarted"
    shop.times["the pod ready, its sidecar's container having ended"] = shop.arm.wait(
        "ready again", lambda: is_ready(shop.pod)
    )
    shop.arm.wait("in its Service", lambda: shop.predict("triple") == 21)
    shop.configure(entry("triple", 3), entry("double", 2))
    shop.until("an edit, the sidecar having been killed", "double", 14)

    assert shop.arm.node.signal(signal.SIGKILL, first, "mlserver")
    shop.arm.wait("the server down", lambda: shop.predict("double") is None)
    shop.until("all models, the server having been killed", "double", 14)
    shop.arm.wait("both", lambda: shop.predict("triple") == 21)
    assert shop.pod["metadata"]["uid"] == first["metadata"]["uid"]

    began = time.monotonic()
    assert evict(shop.arm, first["metadata"]["name"]) < 300
    gone = first["metadata"]["uid"]
    shop.arm.wait(
        "another pod", lambda: [it["metadata"]["uid"] != gone for it in shop.arm.pods("shop")] == [True]
    )
    shop.arm.wait("both", lambda: shop.predict("double") == 14 and shop.predict("triple") == 21)
    shop.times["all models from another pod, the first having been evicted"] = time.monotonic() - began
    evidence.keep("puller", dict(shop.times))
