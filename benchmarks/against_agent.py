"""The puller compared with KServe's agent, which does the same work in Go: CPU, and recovery from failures.

Both are started as sidecars are, on the same store, config directory and model server, in turns. The agent
is built from its Go module (tests/e2e/tools/kserve). It asks for the model server at localhost:8080 and
listens on ports and a socket of fixed names, so all of this runs in a new network namespace. Writes
its section of docs/benchmarks.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import multiprocessing
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from benchmarks._page import filled, put, spread
from tests.e2e.binaries import TABLE, BinaryError, binary
from tests.puller.fakes import ConfigVolume, FakeServer, FaultStore, tree_bytes

T = TypeVar("T")

ROUNDS = int(os.environ.get("ROUNDS", "5"))
SIZES = (1, 100, 1000)
AGENT_STARTS = 100
"""How many models the agent takes at its start: with one more it waits for itself, without end."""
SMALL = 10_000
LARGE = 400_000_000
PATIENCE = 20.0
"""Seconds without any progress after which there will be none."""
_INSIDE = "CHASSIS_BENCHMARK_NETWORK"


@dataclass(frozen=True)
class Cost:
    """Seconds of wall clock and of CPU, and the peak resident set in bytes."""

    wall: float
    cpu: float
    peak: int


@dataclass
class World:
    """The store and the model server, in another event loop."""

    store: FaultStore
    server: FakeServer
    loop: asyncio.AbstractEventLoop
    where: Path

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def uri(self, key: str) -> str:
        return f"{self.store.url}/web/{key}"

    def spec(self, key: str) -> dict[str, str]:
        """A modelSpec with the digest, which the agent does not know of and passes over."""
        return {"storageUri": self.uri(key), "sha256": hashlib.sha256(self.store.objects[key]).hexdigest()}

    def clean(self, model_dir: Path) -> None:
        """The state before the first load, for another sidecar."""
        self.server.serving.clear()
        self.server.loads.clear()
        self.server.model_dir = model_dir
        self.store.cuts = self.store.refuse = 0


@dataclass
class Sidecar:
    """One of the two, with separate volumes."""

    name: str
    where: Path
    world: World
    config: ConfigVolume = field(init=False)
    models: Path = field(init=False)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.config = ConfigVolume(self.where / "configs")
        self.models = self.where / "models"
        self.models.mkdir()
        self.world.clean(self.models)

    def start(self) -> None:
        volumes = ["--config-dir", str(self.config.path), "--model-dir", str(self.models)]
        if self.name == "agent":
            command = [str(binary("kserve-agent")), "--enable-puller", *volumes]
        else:
            command = [sys.executable, "-m", "puller", "--supervise", "true", "--host", "127.0.0.1", *volumes]
        env = os.environ | {"SERVING_READINESS_PROBE": ""}
        with (self.where / "log").open("ab") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log)

    def kill(self) -> None:
        """As a node does that loses power: the parent first, with whom its child ends."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def usage(self) -> tuple[float, int]:
        """(CPU seconds so far, peak resident set in bytes) of its processes."""
        assert self.process is not None
        root = self.process.pid
        pids = [root, *map(int, Path(f"/proc/{root}/task/{root}/children").read_text().split())]
        peaks = [re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()) for pid in pids]
        cpu = sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)  # the clock of another process's CPU
        return cpu, sum(int(peak[1]) * 1024 for peak in peaks if peak)

    def has(self, content: dict[str, bytes]) -> bool:
        """Whether the server serves exactly these, and no work for them is left on disk."""
        serving = self.world.server.serving
        if len(serving) != len(content) or any(
            serving[name] != content[name] for name in content.keys() & serving
        ):
            return False
        notes = content if self.name != "agent" else ()
        return serving.keys() == content.keys() and all(
            (self.models / name / ".loaded").exists() for name in notes
        )

    def until(self, condition: Callable[[], bool], patience: float = PATIENCE) -> float | None:
        """Seconds until it came true; None if progress ended before."""
        began = moved = time.monotonic()
        seen: object = None
        while not condition():
            now = time.monotonic()
            state = (
                len(self.world.server.serving),
                self.world.server.loads.total(),
                self.world.store.bytes_sent,
            )
            if state != seen:
                seen, moved = state, now
            if now - moved > patience:
                return None
            time.sleep(0.005)
        return time.monotonic() - began


# --- CPU and wall clock ------------------------------------------------------------------------------------


def _objects() -> dict[str, bytes]:
    made = {f"m{number}/model.bin": os.urandom(SMALL) for number in range(max(SIZES))}
    return made | {"new/model.bin": os.urandom(SMALL), "big/model.bin": os.urandom(1 << 20) * (LARGE >> 20)}


def _models(world: World, count: int) -> tuple[dict[str, dict[str, str]], dict[str, bytes]]:
    """(name -> spec, name -> content) of the first so many."""
    keys = {f"m{number}": f"m{number}/model.bin" for number in range(count)}
    specs = {name: world.spec(key) for name, key in keys.items()}
    return specs, {name: world.store.objects[key] for name, key in keys.items()}


def _start(sidecar: Sidecar, count: int) -> Cost | None:
    """From exec to all loaded; the agent gets what it cannot start with by an edit. None: they never are."""
    specs, content = _models(sidecar.world, count)
    first = min(count, AGENT_STARTS) if sidecar.name == "agent" else count
    sidecar.config.write({name: specs[name] for name in list(specs)[:first]})
    began = time.monotonic()
    sidecar.start()
    for some in dict.fromkeys((first, count)):
        sidecar.config.write({name: specs[name] for name in list(specs)[:some]}) if some > first else None
        wanted = {name: content[name] for name in list(content)[:some]}
        if sidecar.until(lambda wanted=wanted: sidecar.has(wanted)) is None:  # type: ignore[misc]
            return None
    wall = time.monotonic() - began
    time.sleep(1)  # later reports about it count, too
    return Cost(wall, *sidecar.usage())


def _edit(sidecar: Sidecar, count: int) -> Cost | None:
    """One model of them gets another URI."""
    specs, content = _models(sidecar.world, count)
    before, _ = sidecar.usage()
    began = time.monotonic()
    sidecar.config.write(specs | {"m0": sidecar.world.spec("new/model.bin")})
    wanted = content | {"m0": sidecar.world.store.objects["new/model.bin"]}
    if sidecar.until(lambda: sidecar.has(wanted)) is None:
        return None
    wall = time.monotonic() - began
    time.sleep(1)
    cpu, peak = sidecar.usage()
    return Cost(wall, cpu - before, peak)


def _large(sidecar: Sidecar) -> Cost | None:
    sidecar.config.write({"big": sidecar.world.spec("big/model.bin")})
    began = time.monotonic()
    sidecar.start()
    took = sidecar.until(lambda: "big" in sidecar.world.server.serving)
    return None if took is None else Cost(time.monotonic() - began, *sidecar.usage())


Costs = dict[tuple[str, str], list[Cost | None]]


def _copied(world: World, *, verify: bool) -> Cost:
    """The large object, by a socket's shortest way to a flushed file, in another process."""
    receive, send = (context := multiprocessing.get_context("spawn")).Pipe(duplex=False)
    target = Path(tempfile.mkdtemp(dir=world.where)) / "model.bin"
    child = context.Process(target=_copy, args=(send, world.uri("big/model.bin"), target, verify))
    child.start()
    cost: Cost = receive.recv()
    child.join()
    return cost


def _copy(answer: Connection, url: str, target: Path, verify: bool) -> None:
    parts, digest, buffer = urlsplit(url), hashlib.sha256(), memoryview(bytearray(1 << 20))
    connection = http.client.HTTPConnection(parts.netloc)
    began, used = time.monotonic(), time.process_time()
    connection.request("GET", parts.path)
    response = connection.getresponse()
    with target.open("wb", buffering=0) as file:
        while count := response.readinto(buffer):
            file.write(buffer[:count])
            if verify:
                digest.update(buffer[:count])
        os.fsync(file.fileno())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    answer.send(Cost(time.monotonic() - began, time.process_time() - used, peak))


def _measured(world: World) -> Costs:
    """(what, who) -> what it cost, round by round; who begins changes from round to round."""
    costs: Costs = {}
    for number in range(ROUNDS):
        for count in SIZES:
            for name in ("puller", "agent") if number % 2 else ("agent", "puller"):
                with _sidecar(name, world) as sidecar:
                    costs.setdefault((_starting(count), name), []).append(started := _start(sidecar, count))
                    edited = _edit(sidecar, count) if started else None
                    costs.setdefault((_editing(count), name), []).append(edited)
        for name in ("puller", "agent"):
            with _sidecar(name, world) as sidecar:
                costs.setdefault((_LARGE_TITLE, name), []).append(_large(sidecar))
        for who, verify in ((_COPY, False), (_COPY_VERIFIED, True)):
            costs.setdefault((_LARGE_TITLE, who), []).append(_copied(world, verify=verify))
        print(f"  round {number + 1} of {ROUNDS}", flush=True)
    return costs


def _starting(count: int) -> str:
    return f"{count:,} model{'s' if count > 1 else ''} of 10 kB, from nothing"


def _editing(count: int) -> str:
    return f"one edit among {count:,}"


_LARGE_TITLE = f"one model of {LARGE // 10**6} MB"
_COPY, _COPY_VERIFIED = "a plain copy of the socket to a file", "the same with SHA-256"


# --- recoveries --------------------------------------------------------------------------------------------


def _after(seconds: float | None) -> str:
    return f"never ({PATIENCE:.0f} s waited)" if seconds is None else f"after {seconds:.1f} s"


def _killed(sidecar: Sidecar) -> str:
    world, key = sidecar.world, "big/model.bin"
    sidecar.config.write({"big": world.spec(key)})
    sidecar.start()
    sidecar.until(lambda: any(path.stat().st_blocks > 20_000 for path in sidecar.models.rglob("model.bin")))
    sidecar.kill()
    found = tree_bytes(sidecar.models / "big")
    left = (
        "nothing under its name" if found is None else f"{len(found) * 100 // LARGE} % of it under its name"
    )
    sidecar.start()
    return f"{left}; loaded {_after(sidecar.until(lambda: 'big' in world.server.serving))}"


def _loaded(sidecar: Sidecar, count: int = 3) -> dict[str, bytes]:
    specs, content = _models(sidecar.world, count)
    sidecar.config.write(specs)
    sidecar.start()
    sidecar.until(lambda: sidecar.has(content))
    return content


def _server_restarts(sidecar: Sidecar) -> str:
    content = _loaded(sidecar)
    sidecar.world.call(sidecar.world.server.restart(0.5))
    return f"all loaded again {_after(sidecar.until(lambda: sidecar.has(content)))}"


def _both_restart(sidecar: Sidecar) -> str:
    content = _loaded(sidecar)
    sidecar.kill()
    sidecar.world.call(sidecar.world.server.restart(0.5))
    sidecar.start()
    return f"all loaded again {_after(sidecar.until(lambda: sidecar.has(content)))}"


def _corrupted(sidecar: Sidecar) -> str:
    world, key = sidecar.world, "m0/model.bin"
    good = world.store.objects[key]
    spec = world.spec(key)
    world.store.objects[key] = bytes(reversed(good))
    sidecar.config.write({"m0": spec})
    try:
        sidecar.start()
        sidecar.until(lambda: world.store.gets[key] > 0)
        took = sidecar.until(lambda: bool(world.server.serving), 5)
    finally:
        world.store.objects[key] = good
    if took is not None:
        sound = sidecar.until(lambda: sidecar.has({"m0": good}))
        return f"the wrong bytes are loaded; the right ones {_after(sound)}"
    return f"refused; the right bytes are loaded {_after(sidecar.until(lambda: sidecar.has({'m0': good})))}"


def _truncated(sidecar: Sidecar) -> str:
    world = sidecar.world
    specs, content = _models(world, 1)
    world.store.cuts, world.store.cut_after = 1, SMALL // 2
    sidecar.config.write(specs)
    sidecar.start()
    return f"loaded {_after(sidecar.until(lambda: sidecar.has(content)))}"


def _unavailable(sidecar: Sidecar) -> str:
    world = sidecar.world
    specs, content = _models(world, 1)
    world.store.refuse = 3
    sidecar.config.write(specs)
    sidecar.start()
    return f"loaded {_after(sidecar.until(lambda: sidecar.has(content)))}"


def _removed(sidecar: Sidecar) -> str:
    content = _loaded(sidecar)
    sidecar.kill()
    sidecar.config.write({name: spec for name, spec in _models(sidecar.world, 3)[0].items() if name != "m0"})
    del content["m0"]
    sidecar.start()
    took = sidecar.until(lambda: sidecar.has(content) and not (sidecar.models / "m0").exists())
    return f"unloaded and deleted {_after(took)}"


def _one_too_many(sidecar: Sidecar) -> str:
    specs, content = _models(sidecar.world, AGENT_STARTS + 1)
    sidecar.config.write(specs)
    sidecar.start()
    took = sidecar.until(lambda: sidecar.has(content))
    return f"loaded {_after(took)}" + ("" if took else f"; {len(sidecar.world.server.serving)} are")


RECOVERIES: dict[str, Callable[[Sidecar], str]] = {
    "the sidecar is killed in the middle of a download": _killed,
    "the model server restarts": _server_restarts,
    "both restart, the volume stays": _both_restart,
    "a download comes with wrong bytes, once": _corrupted,
    "an answer is cut short, once": _truncated,
    "the store answers 503, three times": _unavailable,
    "a model is removed while the sidecar is down": _removed,
    f"{AGENT_STARTS + 1} models at the start": _one_too_many,
}


def _recovered(world: World) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for what, try_it in RECOVERIES.items():
        for name in ("puller", "agent"):
            with _sidecar(name, world) as sidecar:
                found.setdefault(what, {})[name] = try_it(sidecar)
        print(f"  {what}: {found[what]}", flush=True)
    return found


# --- the page ----------------------------------------------------------------------------------------------


def _row(what: str, costs: Costs) -> str:
    ours, theirs = costs[what, "puller"], costs[what, "agent"]
    ratios = sorted(our.cpu / their.cpu for our, their in zip(ours, theirs, strict=True) if our and their)
    ratio = spread(ratios, 1) if ratios else ""
    cells = [cell for each in (ours, theirs) for cell in _cells([cost for cost in each if cost])]
    return (
        f"| {what} | {cells[0]} | {cells[3]} | {ratio} | {cells[1]} | {cells[4]} | {cells[2]} | {cells[5]} |"
    )


def _cells(costs: list[Cost]) -> tuple[str, str, str]:
    if not costs:
        return "never", "never", ""
    cpu, wall = (statistics.median(getattr(cost, of) for cost in costs) for of in ("cpu", "wall"))
    return f"{cpu:.2f}", f"{wall:.2f}", f"{statistics.median(cost.peak for cost in costs) / 2**20:.0f}"


def _per_gigabyte(costs: Costs) -> Iterator[str]:
    """CPU of the large model a GB, beyond what the sidecar takes for a small one."""
    starts = {name: costs[_starting(1), name] for name in ("puller", "agent")}
    for who, shown in (
        (_COPY, _COPY),
        (_COPY_VERIFIED, _COPY_VERIFIED),
        ("puller", "ours, which verifies"),
        ("agent", "the agent, which neither verifies nor flushes"),
    ):
        large = costs[_LARGE_TITLE, who]
        small = starts.get(who, [Cost(0, 0, 0)] * len(large))
        pairs = [(one.cpu, other.cpu) for one, other in zip(large, small, strict=True) if one and other]
        figures = [(one - other) / LARGE * 1e9 for one, other in pairs]
        if figures:
            wall = statistics.median(one.wall for one in large if one)
            spread = f"{min(figures):.2f} to {max(figures):.2f}"
            yield f"| {shown} | {statistics.median(figures):.2f} ({spread}) | {wall:.2f} |"


def _page(costs: Costs, recoveries: dict[str, dict[str, str]]) -> str:
    titles = dict.fromkeys(what for what, _ in costs)
    return filled(
        "against_agent",
        rows="\n".join(_row(what, costs) for what in titles),
        copies="\n".join(_per_gigabyte(costs)),
        recoveries="\n".join(
            f"| {what} | {said['puller']} | {said['agent']} |" for what, said in recoveries.items()
        ),
        version=TABLE["kserve-agent"].version,
        rounds=ROUNDS,
    )


# --- running -----------------------------------------------------------------------------------------------


@contextmanager
def _sidecar(name: str, world: World) -> Iterator[Sidecar]:
    """One of the two, for as long as one looks at it. What it leaves stays until the end: a file system that
    has much to delete makes files more slowly for the next."""
    sidecar = Sidecar(name, Path(tempfile.mkdtemp(dir=world.where)), world)
    try:
        yield sidecar
    finally:
        sidecar.kill()


@contextmanager
def _world() -> Iterator[World]:
    where = Path(tempfile.mkdtemp(prefix="chassis-bench-"))
    world = World(FaultStore(objects=_objects()), FakeServer(), asyncio.new_event_loop(), where)
    world.server.port = 8080
    thread = threading.Thread(target=world.loop.run_forever, daemon=True)
    thread.start()
    world.call(world.store.start())
    world.call(world.server.start())
    try:
        yield world
    finally:
        world.call(world.store.stop())
        world.call(world.server.stop())
        world.loop.call_soon_threadsafe(world.loop.stop)
        thread.join()
        shutil.rmtree(where, ignore_errors=True)


def main() -> None:
    try:
        binary("kserve-agent")
    except BinaryError as error:
        print(f"KServe's agent could not be built, so there is no measurement: {error}")
        return
    if _INSIDE not in os.environ:
        own = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--user", "--map-root-user"]
        inside = ["sh", "-c", 'ip link set lo up && exec "$0" -m benchmarks.against_agent', sys.executable]
        subprocess.run([*own, *inside], env=os.environ | {_INSIDE: "1"}, check=True)
        return
    with _world() as world:
        costs = _measured(world)
        recoveries = _recovered(world)
    page = _page(costs, recoveries)
    put("against_agent", page)
    print(page)


if __name__ == "__main__":
    main()
