"""CPU of the HTTPS server for a review, compared with a webhook on controller-runtime (`benchmarks/peers`).

The figure is CPU seconds of the server's process, which a busy machine bends least. Within a round every
server answers the same reviews, one server after the other, and each round gives one ratio; the document gets
the median of the rounds and their spread. Writes its section of docs/benchmarks.md, and the plot.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from benchmarks import _load as load
from benchmarks import _peer, _trips
from benchmarks._page import DOCS, spread, write
from benchmarks._plot import bars
from benchmarks._reviews import Stream, Workloads, cluster

ROUNDS = int(os.environ.get("ROUNDS", "9"))
REVIEWS = int(os.environ.get("REVIEWS", "1000"))
"""Of one server in one round."""
RATES = (200, 1000)
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Scenario:
    """One stream of reviews at one endpoint, and what the project aims at."""

    name: str
    path: str
    stream: Callable[[int], Stream]
    goal: float


SCENARIOS = (
    Scenario("/mutate, pods, all new", "mutate", lambda seed: Workloads(seed).pods(REVIEWS, 0), 1),
    Scenario("/mutate, pods, 50 % seen", "mutate", lambda seed: Workloads(seed).pods(REVIEWS, 0.5), 2),
    Scenario("/mutate, pods, 90 % seen", "mutate", lambda seed: Workloads(seed).pods(REVIEWS, 0.9), 5),
    Scenario("/validate, pods, all new", "validate", lambda seed: Workloads(seed).pods(REVIEWS, 0), 1),
    Scenario("/validate, pods, 90 % seen", "validate", lambda seed: Workloads(seed).pods(REVIEWS, 0.9), 3),
    Scenario(
        "/validate, Deployments, all new",
        "validate",
        lambda seed: Workloads(seed).deployments(REVIEWS // 2, 0),
        1,
    ),
    Scenario(
        "/validate, Deployments, templates seen",
        "validate",
        lambda seed: Workloads(seed).rollouts(REVIEWS // 2),
        1,
    ),
    Scenario(
        "/validate, Deployments, all seen",
        "validate",
        lambda seed: Workloads(seed).deployments(REVIEWS // 2, 1),
        5,
    ),
)


@dataclass
class Running:
    """A server that is being measured."""

    name: str
    port: int
    pid: int


@dataclass
class Costs:
    """CPU seconds of one review, round by round, for each server."""

    by_server: dict[str, list[float]] = field(default_factory=dict)

    def ratios(self, peer: str) -> list[float]:
        """How many times the CPU of ours the peer used, in each round."""
        return [
            theirs / ours
            for ours, theirs in zip(self.by_server["ML Chassis"], self.by_server[peer], strict=True)
        ]


# --- servers -----------------------------------------------------------------------------------------------


@contextmanager
def _serving(name: str, command: list[str], port: int, env: dict[str, str]) -> Iterator[Running]:
    process = subprocess.Popen(
        command, env={**os.environ, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _await(port, process)
        yield Running(name, port, _worker(process.pid))
    finally:
        process.terminate()
        process.wait()


def _worker(pid: int) -> int:
    """The process that answers: a supervisor's only child, or the process itself."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else pid


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    review = Workloads(0).pods(1, 0).measured
    for _ in range(600):
        if process.poll() is not None:
            raise SystemExit(f"the server ended with status {process.returncode} before it served")
        try:
            load.closed(port, "mutate", review)
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit("the server did not come up within a minute")


def _servers(scratch: Path, peer: Path, stack: ExitStack) -> list[Running]:
    _peer.certify(scratch)
    facts = scratch / "facts.json"
    facts.write_bytes(orjson.dumps({"apiVersion": "v1", "kind": "List", "items": cluster()}))
    ours = [sys.executable, "-m", "webhook.cli", "serve", "--host", "127.0.0.1", "--facts", str(facts)]
    ours += ["--tls-cert", str(scratch / "tls.crt"), "--tls-key", str(scratch / "tls.key")]
    first = 20_000 + os.getpid() % 10_000
    go = [str(peer), "-certs", str(scratch)]
    commands = [
        ("ML Chassis", [*ours, "--port", str(first)], {}),
        ("Go", [*go, "-port", str(first + 1)], {"GOMAXPROCS": "1"}),
        ("Go, GOGC=400", [*go, "-port", str(first + 2)], {"GOMAXPROCS": "1", "GOGC": "400"}),
    ]
    return [
        stack.enter_context(_serving(name, command, first + number, env))
        for number, (name, command, env) in enumerate(commands)
    ]


# --- measuring ---------------------------------------------------------------------------------------------


def _measured(servers: list[Running]) -> dict[str, Costs]:
    costs = {scenario.name: Costs() for scenario in SCENARIOS}
    for number in range(ROUNDS):
        for scenario in SCENARIOS:
            stream = scenario.stream(number)
            turn = number % len(servers)
            for server in (*servers[turn:], *servers[:turn]):  # no server is always the first
                cost = load.cost(server.pid, server.port, scenario.path, stream.known, stream.measured)
                costs[scenario.name].by_server.setdefault(server.name, []).append(cost)
        print(f"  round {number + 1} of {ROUNDS}", flush=True)
    return costs


def _latencies(servers: list[Running]) -> list[str]:
    rows = []
    for rate in RATES:
        found: dict[str, list[list[float]]] = {server.name: [] for server in servers}
        for number in range(ROUNDS):
            stream = Workloads(1000 + number).pods(2 * rate, 0.9)
            turn = number % len(servers)
            for server in (*servers[turn:], *servers[:turn]):
                with load.apart(server.pid):
                    load.closed(server.port, "mutate", stream.known)
                    latencies = load.open_loop(server.port, "mutate", stream.measured, rate, number)
                found[server.name].append([latencies[len(latencies) * each // 100] for each in PERCENTILES])
        for name, rounds in found.items():
            cells = [f"{statistics.median(each) * 1e3:.2f}" for each in zip(*rounds, strict=True)]
            beside = [ours[-1] / go[-1] for ours, go in zip(rounds, found["Go"], strict=True)]
            ratio = "" if name == "Go" else spread(beside)
            rows.append(f"| {rate:,} | {name} | {' | '.join(cells)} | {ratio} |")
    return rows


# --- the page ----------------------------------------------------------------------------------------------


def _row(scenario: Scenario, costs: Costs) -> str:
    cells = [f"{statistics.median(costs.by_server[name]) * 1e6:,.0f}" for name in costs.by_server]
    cells += [spread(costs.ratios(peer)) for peer in ("Go", "Go, GOGC=400")]
    return f"| {scenario.name} | {' | '.join(cells)} | {scenario.goal:g} |"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        scratch = Path(directory)
        peer = _peer.built(scratch)
        if peer is None:
            print("Go is not installed, so the peer is not built and there is no measurement.")
            return
        servers = _servers(scratch, peer, stack)
        costs = _measured(servers)
        latencies = _latencies(servers)
    write(
        "against_go",
        rows="\n".join(_row(scenario, costs[scenario.name]) for scenario in SCENARIOS),
        latencies="\n".join(latencies),
        counts=_trips.rows(_trips.trips()),
        rounds=ROUNDS,
        reviews=REVIEWS,
    )
    medians = {
        scenario.name: {
            name: statistics.median(each) * 1e6 for name, each in costs[scenario.name].by_server.items()
        }
        for scenario in SCENARIOS
    }
    DOCS.joinpath("benchmarks.svg").write_text(bars("CPU of the server for one review, µs", medians))


if __name__ == "__main__":
    main()
