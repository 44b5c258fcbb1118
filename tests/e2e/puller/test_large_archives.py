"""Archives of several gigabytes go through a puller that stays small."""

from __future__ import annotations

import asyncio
import io
import random
import shutil
import tarfile
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zstandard

from tests.e2e.puller.sidecar import Sidecar
from tests.puller.fakes import FaultStore, until

pytestmark = pytest.mark.e2e

GIB = 1 << 30
BLOCK = 16 << 20
MEMORY = 150 << 20


@pytest.fixture
async def store() -> AsyncIterator[FaultStore]:
    found = FaultStore()
    await found.start()
    yield found
    await found.stop()


def block() -> bytes:
    """Compresses about 64 times: well, and less well than what counts as a bomb."""
    return random.Random(0).randbytes(BLOCK // 64).ljust(BLOCK, b"\0")


def tar_zst(sizes: dict[str, int]) -> bytes:
    """A tar.zst of repeated blocks, put together from compressed frames without ever being whole."""
    compress = zstandard.ZstdCompressor(level=1).compress
    frame = compress(block())
    out = io.BytesIO()
    for name, size in sizes.items():
        assert size % BLOCK == 0
        header = tarfile.TarInfo(name)
        header.size = size
        out.write(compress(header.tobuf(tarfile.GNU_FORMAT)))
        out.write(frame * (size // BLOCK))
    out.write(compress(bytes(10240)))
    return out.getvalue()


def zipped(path: Path, sizes: dict[str, int]) -> bytes:
    data = block()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, size in sizes.items():
            with archive.open(name, "w", force_zip64=True) as entry:
                for _ in range(size // BLOCK):
                    entry.write(data)
    try:
        return path.read_bytes()
    finally:
        path.unlink()


@pytest.mark.parametrize(("kind", "gigabytes"), [("tar.zst", 4), ("zip", 2)])
async def test_a_large_archive_in_little_memory(
    tmp_path: Path, store: FaultStore, kind: str, gigabytes: int
) -> None:
    sizes = {"big.bin": gigabytes * GIB - GIB // 2, "small.bin": GIB // 2}
    pack = tar_zst if kind == "tar.zst" else lambda sizes: zipped(tmp_path / "made.zip", sizes)
    store.objects[f"m.{kind}"] = await asyncio.to_thread(pack, sizes)
    sidecar = Sidecar(tmp_path, store.env, server="none")
    sidecar.config.write({"m": f"s3://bucket/m.{kind}"})
    try:
        sidecar.start()
        began = asyncio.get_running_loop().time()
        marker = sidecar.model_dir / "m"
        await until(lambda: list(marker.glob("SUCCESS.*")), 240)
        seconds = asyncio.get_running_loop().time() - began
        assert {path.name: path.stat().st_size for path in marker.glob("*.bin")} == sizes
        with (marker / "small.bin").open("rb") as file:
            assert file.read(BLOCK) == block()
        peak = sidecar.peak_memory()
        print(f"{kind}: {gigabytes} GiB in {seconds:.1f} s, peak {peak >> 20} MiB")
        assert peak < MEMORY
        assert await asyncio.to_thread(sidecar.stop) == 0
    finally:
        await asyncio.to_thread(sidecar.kill)
        shutil.rmtree(sidecar.model_dir, ignore_errors=True)
