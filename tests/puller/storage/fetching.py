"""Fetches of one model, and their results."""

from __future__ import annotations

import io
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from puller.model_config import ModelSpec
from puller.storage.base import Limits
from puller.storage.cache import SharedCache
from puller.storage.connections import Connections
from puller.storage.disk_budget import DiskBudget
from puller.storage.fetch import Fetch, Storage

MB = 1 << 20
LIMITS = Limits(part_size=MB, chunk_size=1 << 16, retry_initial=0.01, retry_max=0.05)
FILES = {"model.bin": os.urandom(3 * MB + 17), "sub/config.json": b"{}", "empty": b""}


def fetch_of(
    env: Mapping[str, str],
    where: Path,
    uri: str,
    limits: Limits = LIMITS,
    *,
    max_disk: int = 0,
    cache: SharedCache | None = None,
    **spec: Any,
) -> Fetch:
    """A fetch into a new directory below `where`."""
    where.mkdir(exist_ok=True)
    budget, connections = DiskBudget(where, max_disk), Connections(limits.connections)
    storage = Storage(env, limits, budget, where / "claims", connections, cache=cache)
    return Fetch(ModelSpec("m", uri, **spec), Path(tempfile.mkdtemp(dir=where)) / "m", storage)


async def files_of(fetch: Fetch) -> dict[str, bytes]:
    tree = await fetch.run()
    return {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


async def fetched(env: Mapping[str, str], where: Path, uri: str, **more: Any) -> dict[str, bytes]:
    return await files_of(fetch_of(env, where, uri, **more))


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()
