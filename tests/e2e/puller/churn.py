"""kill -9 at random points while the config changes: the cost, and the conditions that must hold after each
kill.

The store and the model server are the tests' own; the puller is a process.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.puller.sidecar import Sidecar
from tests.puller.fakes import FakeServer, FaultStore, is_note, until

NAMES = ("alpha", "beta", "gamma", "delta")
VERSIONS = 3
FILES = 3
SIZE = 200_000


@dataclass
class Report:
    """What a run saw."""

    kills: int
    seconds_to_converge: float
    loads: int


def content(name: str, version: int, file: int) -> bytes:
    """Every file contains its model and version, so that a mixture would show."""
    return f"{name} {version} {file}|".encode().ljust(SIZE, b".")


async def run(where: Path, kills: int, seed: int) -> Report:
    """Raises AssertionError when a partial or mixed model has its final name, or a load overlaps."""
    rng = random.Random(seed)
    store, server = FaultStore(), FakeServer(model_dir=where / "models")
    await store.start()
    await server.start()
    for name in NAMES:
        for version in range(VERSIONS):
            for file in range(FILES):
                store.objects[f"{name}/{version}/{file}.bin"] = content(name, version, file)
    sidecar = Sidecar(
        where, store.env, server="v2", server_url=server.url, unload_timeout="60", load_timeout="60"
    )
    try:
        for _ in range(kills):
            await _edit(sidecar, rng)
            if rng.random() < 0.1:
                await server.restart()
            server.load_seconds = rng.choice((0.0, 0.05, 0.3))
            store.cuts, store.cut_after = rng.choice((0, 0, 2)), 50_000
            await asyncio.to_thread(sidecar.start)
            await asyncio.sleep(rng.uniform(0.3, 1.0))
            if rng.random() < 0.5:
                await _edit(sidecar, rng)
                await asyncio.sleep(rng.uniform(0, 0.2))
            await asyncio.to_thread(sidecar.kill)
            check_disk(sidecar.model_dir)
        wanted = await _edit(sidecar, rng)
        store.cuts = 0
        await asyncio.to_thread(sidecar.start)
        began = asyncio.get_running_loop().time()
        expected = {name: _whole(name, version) for name, version in wanted.items()}
        # Also without work to do, the process must have started: before, SIGTERM ends it as any other.
        await until(
            lambda: server.serving == expected and sidecar.on_disk() == expected and sidecar.answers(),
            60,
            str(wanted),
        )
        seconds = asyncio.get_running_loop().time() - began
        check_disk(sidecar.model_dir)
        assert server.overlaps == 0
        status = await asyncio.to_thread(sidecar.stop)
        assert status == 0, sidecar.log.read_text()[-2000:]
        left = [path for part in ("new", "old") for path in (sidecar.model_dir / ".puller" / part).iterdir()]
        assert left == []
        return Report(kills, seconds, sum(server.loads.values()))
    finally:
        await asyncio.to_thread(sidecar.kill)
        await server.stop()
        await store.stop()


def check_disk(model_dir: Path) -> None:
    """Every marked directory under a model's name is one whole version. (One without a marker does not
    count as a model, and the next start removes it.)"""
    for directory in model_dir.iterdir() if model_dir.is_dir() else ():
        if directory.name in NAMES:
            assert list(directory.glob("SUCCESS.*")), f"{directory} has its final name and no marker"
            found = {path.name: path.read_bytes() for path in directory.iterdir() if not is_note(path)}
            whole = [
                {f"{file}.bin": content(directory.name, version, file) for file in range(FILES)}
                for version in range(VERSIONS)
            ]
            assert found in whole, f"{directory} is partial or mixed: {sorted(found)}"


async def _edit(sidecar: Sidecar, rng: random.Random) -> dict[str, int]:
    """Some of the models, each at some version."""
    wanted = {name: rng.randrange(VERSIONS) for name in NAMES if rng.random() < 0.7}
    await asyncio.to_thread(
        sidecar.config.write, {name: f"s3://bucket/{name}/{version}" for name, version in wanted.items()}
    )
    return wanted


def _whole(name: str, version: int) -> bytes:
    return b"".join(content(name, version, file) for file in range(FILES))
