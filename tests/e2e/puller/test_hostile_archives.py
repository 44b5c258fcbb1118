"""Archives that were made to end a puller: it refuses them, stays small, and serves the others."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from puller.files import remove_tree
from tests.e2e.puller.sidecar import Sidecar
from tests.puller.fakes import FaultStore, tarred, until
from tests.puller.storage.test_archive import zip_file
from tests.puller.test_files import nested

pytestmark = pytest.mark.e2e

MEMORY = 150 << 20
DEPTH = 1400


@pytest.fixture
async def store() -> AsyncIterator[FaultStore]:
    found = FaultStore()
    await found.start()
    yield found
    await found.stop()


def many_empty_files(count: int) -> bytes:
    """A sound zip of that many empty files, each with another name."""
    body, directory = bytearray(), bytearray()
    for index in range(count):
        name = b"%08d" % index
        at = len(body)
        body += struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, 0, 0, len(name), 0) + name
        directory += struct.pack(
            "<4s4B4HL2L5H2L", b"PK\1\2", 20, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, len(name), 0, 0, 0, 0, 0, at
        )
        directory += name
    start, size = len(body), len(directory)
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, start)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, start + size, 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return bytes(body + directory + end64 + locator + end)


async def test_hostile_archives_end_nothing(tmp_path: Path, store: FaultStore) -> None:
    deep = "/".join(["d"] * DEPTH) + "/file"
    store.objects["deep.tar"] = tarred({deep: b"x"})
    store.objects["many.zip"] = zip_file(tmp_path / "many.zip", 1_500_000, 1).read_bytes()
    store.objects["good/model.bin"] = b"weights"
    sidecar = Sidecar(tmp_path, store.env, server="none")
    await asyncio.to_thread(nested, tmp_path / "left", DEPTH)
    sidecar.config.write(
        {"deep": "s3://bucket/deep.tar", "many": "s3://bucket/many.zip", "good": "s3://bucket/good"}
    )
    try:
        for _ in range(2):  # the second start finds what a puller that unpacked anything would have left
            new = sidecar.model_dir / ".puller" / "new"
            await asyncio.to_thread(new.mkdir, parents=True, exist_ok=True)
            if (tmp_path / "left").exists():
                await asyncio.to_thread(os.rename, tmp_path / "left", new / "left")
            sidecar.start()
            await until(
                lambda: (
                    {name: entry["state"] for name, entry in sidecar.models().items()}
                    == {"deep": "Failed", "good": "Loaded", "many": "Failed"}
                ),
                60,
            )
            reasons = {name: entry["reason"] for name, entry in sidecar.models().items()}
            assert reasons["deep"] == "HostilePath"
            assert reasons["many"] in ("ArchiveBomb", "BadArchive")
            assert not (new / "left").exists()
            peak = sidecar.peak_memory()
            print(f"peak {peak >> 20} MiB")
            assert peak < MEMORY
            assert await asyncio.to_thread(sidecar.stop) == 0
    finally:
        await asyncio.to_thread(sidecar.kill)
        await asyncio.to_thread(remove_tree, sidecar.model_dir)


async def test_a_stop_ends_a_zip_of_many_files_in_the_middle(tmp_path: Path, store: FaultStore) -> None:
    """190,000 files take many seconds; what SIGTERM waits for is one of them."""
    store.objects["many.zip"] = many_empty_files(190_000)
    sidecar = Sidecar(tmp_path, store.env, server="none")
    sidecar.config.write({"many": "s3://bucket/many.zip"})
    tree = sidecar.model_dir / ".puller" / "new" / "many"
    try:
        sidecar.start()
        await until(lambda: tree.exists() and (tree / "00000100").exists(), 60)
        assert await asyncio.to_thread(sidecar.stop) == 0
        assert not (sidecar.model_dir / "many").exists()
        assert not tree.exists()
        assert "stopped" in await asyncio.to_thread(sidecar.log.read_text)
    finally:
        await asyncio.to_thread(sidecar.kill)
        await asyncio.to_thread(remove_tree, sidecar.model_dir)
