"""From exec to ready, and to the first pod changed, with a real kube-apiserver.

`chassis serve` is started as a pod of the manifests would: with the ServiceAccount's rights, the policy in a
ConfigMap, a certificate that it makes itself. Once as the first replica of all, which makes the CA and writes
it into the webhook configurations, once as a further one. Writes its section of docs/benchmarks.md.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks._load import family, used
from benchmarks._page import write
from tests.e2e.api import ApiError
from tests.e2e.controlplane import ControlPlane
from tests.e2e.install import CONFIGURATIONS, NAMESPACE, Chassis
from tests.e2e.workloads import injected

ROUNDS = int(os.environ.get("ROUNDS", "9"))
SECRET, NAME = "mlchassis-tls", "chassis.mlchassis.dev"
FIRST, FURTHER = "the first replica", "a further replica"


@dataclass(frozen=True)
class Start:
    """Seconds since exec."""

    answers: float
    """Until it answers at all."""
    ready: float
    cpu: float
    """Of CPU, of all its processes, until it is ready."""
    changed: float
    """Until the API server lets it change a pod."""


def _started(control_plane: ControlPlane, chassis: Chassis) -> Start:
    chassis.exec()
    began = chassis.process.began
    chassis.process.wait_until(lambda: _answers(chassis), 60, 0.01)
    answers = time.perf_counter() - began
    chassis.process.wait_until(chassis.ready, 60, 0.01)
    ready, used = time.perf_counter() - began, _cpu(chassis.process.pid)
    chassis.process.wait_until(lambda: bool(injected(control_plane.api)), 60, 0.01)
    changed = time.perf_counter() - began
    assert chassis.stop() == 0
    return Start(answers, ready, used, changed)


def _answers(chassis: Chassis) -> bool:
    with suppress(OSError):
        return chassis.get("/healthz")[0] == 200
    return False


def _cpu(pid: int) -> float:
    return used(family(pid))


def _forget(control_plane: ControlPlane) -> None:
    """As if the manifests had just been applied."""
    with suppress(ApiError):
        control_plane.api.delete("secrets", SECRET, NAMESPACE)
    for resource in CONFIGURATIONS:
        configuration = control_plane.api.get(resource, NAME)
        for entry in configuration["webhooks"]:
            entry["clientConfig"].pop("caBundle", None)
        control_plane.api.replace(configuration)


@contextmanager
def _cluster() -> Iterator[tuple[ControlPlane, Chassis]]:
    with (
        tempfile.TemporaryDirectory() as directory,
        ControlPlane(Path(directory, "cluster")) as control_plane,
    ):
        control_plane.add_node("node-0")
        chassis = Chassis(control_plane)
        chassis.install()
        try:
            yield control_plane, chassis
        finally:
            chassis.stop()


def _row(name: str, starts: list[Start]) -> str:
    cells = []
    for each in ("answers", "ready", "cpu", "changed"):
        found = sorted(getattr(start, each) for start in starts)
        cells.append(f"{statistics.median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})")
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    starts: dict[str, list[Start]] = {FIRST: [], FURTHER: []}
    with _cluster() as (control_plane, chassis):
        _started(control_plane, chassis)  # files are in the page cache from here on
        for _ in range(ROUNDS):
            _forget(control_plane)
            starts[FIRST].append(_started(control_plane, chassis))
            starts[FURTHER].append(_started(control_plane, chassis))
    write(
        "cold_start",
        rows="\n".join(_row(name, found) for name, found in starts.items()),
        rounds=ROUNDS,
    )


if __name__ == "__main__":
    main()
