"""The cost of a pull compared with the limits of the loopback and the disk.

The baseline of each table moves the same bytes, in the same run, by plain sockets and `write`, with the
same `fsync`s and renames, in separate processes. The store and the model server are simple ones in
another process; the puller is the real one, started as the sidecar is, so that its times include the
start of Python.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from tests.puller.fakes import ConfigVolume, FakeServer, FaultStore

LARGE = {f"big/{index:02}.bin": 250_000_000 // 40 for index in range(40)}
SMALL = {f"m{index}/model.bin": 1000 for index in range(1000)}


@dataclass(frozen=True)
class Cost:
    """Seconds of wall clock and of CPU, and the peak resident set in bytes."""

    wall: float
    cpu: float
    peak: int


def main() -> None:
    where = Path(tempfile.mkdtemp(prefix="chassis-bench-"))
    parent, child = multiprocessing.Pipe()
    world = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(child, where / "models"), daemon=True
    )
    world.start()
    store, server = parent.recv()
    try:
        large_files(where, store)
        small_models(where, store, server)
    finally:
        world.terminate()
        world.join()
        shutil.rmtree(where, ignore_errors=True)


def large_files(where: Path, store: str) -> None:
    """One model of 40 files, 250 MB."""
    rows = {"plain sockets, 8 at a time": _plain_copy(store, LARGE, where / "plain")}
    puller = Puller(where, store)
    puller.config.write({"big": "s3://bucket/big"})
    with puller.running() as sidecar:
        rows["cold"] = sidecar.until_ready()
    with puller.running() as sidecar:
        rows["unchanged"] = sidecar.until_ready()
    _table("40 files, 250 MB", rows)
    shutil.rmtree(where / "models")


def small_models(where: Path, store: str, server: str) -> None:
    """1,000 models of 1 kB, downloaded and loaded."""
    rows = {"plain sockets, 8 at a time": _plain_copy(store, SMALL, where / "plain")}
    puller = Puller(where, store, "--server", "v2", "--server-url", server)
    models = {f"m{index}": f"s3://bucket/m{index}" for index in range(1000)}
    puller.config.write(models)
    with puller.running() as sidecar:
        rows["cold, each loaded into a server"] = sidecar.until_ready()
        before = sidecar.cost()
        marker = where / "models" / "m7" / ".loaded"
        old = marker.stat().st_ino
        puller.config.write(models | {"m7": "s3://bucket/m8"})
        _wait(lambda: marker.exists() and marker.stat().st_ino != old)
        after = sidecar.cost()
        rows["1 of 1,000 changed and loaded"] = Cost(
            after.wall - before.wall, after.cpu - before.cpu, after.peak
        )
    with puller.running() as sidecar:
        rows["unchanged"] = sidecar.until_ready()
    _table("1,000 models of 1 kB", rows)


class Puller:
    """The sidecar's command line and volumes."""

    def __init__(self, where: Path, store: str, *flags: str) -> None:
        self.config = ConfigVolume(where / f"configs{len(flags)}")
        self._where = where
        self._env = {
            **os.environ,
            "AWS_ENDPOINT_URL": store,
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
        }
        self._flags = flags or ("--server", "none")

    @contextmanager
    def running(self) -> Iterator[Sidecar]:
        command = [
            sys.executable,
            "-m",
            "puller",
            "--port",
            "0",
            "--host",
            "127.0.0.1",
            "--log-level",
            "info",
        ]
        volumes = ["--config-dir", str(self.config.path), "--model-dir", str(self._where / "models")]
        log = self._where / "puller.log"
        log.unlink(missing_ok=True)
        began = time.perf_counter()
        with log.open("wb") as output:
            child = subprocess.Popen([*command, *volumes, *self._flags], env=self._env, stderr=output)
        try:
            yield Sidecar(child.pid, log, began)
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait()


@dataclass(frozen=True)
class Sidecar:
    """A puller that runs."""

    pid: int
    log: Path
    began: float

    def until_ready(self) -> Cost:
        """From the start of the process until every model is loaded."""
        _wait(lambda: '"event":"listening"' in self.log.read_text())
        first = next(line for line in self.log.read_text().splitlines() if "listening" in line)
        port = json.loads(first)["address"][1]
        _wait(lambda: _status(f"http://127.0.0.1:{port}/readyz") == 200)
        return self.cost()

    def cost(self) -> Cost:
        stat = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        cpu = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
        status = Path(f"/proc/{self.pid}/status").read_text()
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        return Cost(time.perf_counter() - self.began, cpu, int(peak[1]) * 1024 if peak else 0)


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return int(response.status)
    except OSError:
        return 0


def _wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the puller did not get there in 300 s")
        time.sleep(0.02)


def _plain_copy(store: str, objects: dict[str, int], into: Path) -> Cost:
    """GET each object and write it, as a short program would, each file synced."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_copy_all, args=(send, store, list(objects), into))
    child.start()
    cost: Cost = receive.recv()
    child.join()
    shutil.rmtree(into)
    return cost


def _copy_all(answer: Connection, store: str, keys: list[str], into: Path) -> None:
    began = time.perf_counter()
    host = store.removeprefix("http://")

    def copy(mine: list[str]) -> None:
        connection = http.client.HTTPConnection(host)
        buffer = memoryview(bytearray(1 << 20))
        for key in mine:
            path = into / key
            path.parent.mkdir(parents=True, exist_ok=True)
            connection.request("GET", f"/web/{key}")
            response = connection.getresponse()
            with path.open("wb", buffering=0) as file:
                while count := response.readinto(buffer):
                    file.write(buffer[:count])
                os.fsync(file.fileno())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(copy, [keys[index::8] for index in range(8)]))
    used = resource.getrusage(resource.RUSAGE_SELF)
    answer.send(Cost(time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024))


def _serve(answer: Connection, model_dir: Path) -> None:
    """The store and the model server, until the process is ended."""
    asyncio.run(_serve_forever(answer, model_dir))


async def _serve_forever(answer: Connection, model_dir: Path) -> None:
    store, server = FaultStore(), FakeServer(model_dir=model_dir)
    body = os.urandom(max(LARGE.values()))
    store.objects = {key: body[:size] for key, size in (LARGE | SMALL).items()}
    await store.start()
    await server.start()
    answer.send((store.url, server.url))
    await asyncio.Event().wait()


def _table(title: str, rows: dict[str, Cost]) -> None:
    """Each row, with its ratio to the first."""
    print(title)
    baseline = next(iter(rows.values()))
    for name, cost in rows.items():
        wall = f"{cost.wall:>7.2f} s {cost.wall / baseline.wall:>6.2f} x"
        cpu = f"CPU {cost.cpu:>6.2f} s {cost.cpu / baseline.cpu:>6.2f} x"
        print(f"  {name:<34} {wall}   {cpu}   peak {cost.peak / 2**20:>4.0f} MiB")


if __name__ == "__main__":
    main()
