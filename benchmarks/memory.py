"""Memory of the server while it answers reviews: what a pod of it needs, and whether that grows.

The reviews are of pods, nine in ten of which were seen before, each sent to both endpoints, and of a few
Deployments. `REVIEWS` says how many. Every line is of the worker: its resident memory, the private part of
it, and the memory of supervisor and worker together, shared pages counted once.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from benchmarks import _load as load
from benchmarks._reviews import Workloads, cluster

REVIEWS = int(os.environ.get("REVIEWS", "50000"))
LINES = 10
BATCH = 2_000
"""Pods and Deployments that are made at a time: each batch has new ReplicaSets."""
DEPLOYMENTS = BATCH // 20


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _serving() -> Iterator[tuple[int, int, int]]:
    """A server with its default memo: its port, its process, and that of its worker."""
    port = _free_port()
    with tempfile.TemporaryDirectory() as scratch:
        facts = Path(scratch, "facts.json")
        facts.write_bytes(orjson.dumps({"apiVersion": "v1", "kind": "List", "items": cluster()}))
        command = [sys.executable, "-m", "webhook.cli", "serve", "--self-signed", "--facts", str(facts)]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _await(port, process)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            yield port, process.pid, int(children[0])
        finally:
            process.terminate()
            process.wait()


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            load.closed(port, "mutate", Workloads(0).pods(1, 0).measured)
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit(f"the server ended with status {process.returncode} before it served")


def _sent(port: int, seed: int) -> int:
    """Send one batch; how many reviews that were."""
    workloads = Workloads(seed)
    pods, rollouts = workloads.pods(BATCH, 0.9), workloads.rollouts(DEPLOYMENTS)
    sent = 0
    for path, reviews in (
        ("mutate", pods.measured),
        ("validate", pods.measured),
        ("validate", [*rollouts.known, *rollouts.measured]),
    ):
        load.closed(port, path, reviews)
        sent += len(reviews)
    return sent


def main() -> None:
    with _serving() as (port, supervisor, worker):
        print("    reviews   worker's RSS   its own alone   with the supervisor   MiB")
        sent, batch, due = 0, 0, 0
        while True:
            if sent >= due:
                ours, theirs = load.memory(worker), load.memory(supervisor)
                own = ours["Private_Dirty"] + ours["Private_Clean"]
                both = ours["Pss"] + theirs["Pss"]
                print(f"  {sent:>9,}   {ours['Rss']:>12.1f}   {own:>13.1f}   {both:>19.1f}", flush=True)
                due += REVIEWS // LINES
            if sent >= REVIEWS:
                return
            sent += _sent(port, batch)
            batch += 1


if __name__ == "__main__":
    main()
