"""A cache on a real network file system: each pod has its own mount of one export."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from puller.status import STATUS_FILE
from tests.e2e.binaries import BinaryError
from tests.e2e.node import packages
from tests.e2e.puller import sshfs
from tests.e2e.puller.sidecar import Sidecar
from tests.puller.fakes import FaultStore, tree_bytes, until

pytestmark = pytest.mark.e2e

FILES = {f"{number:03}.bin": f"{number}|".encode().ljust(2_000, b".") for number in range(200)}
WHOLE = b"".join(FILES.values())


@pytest.fixture(scope="module", autouse=True)
def can_mount() -> None:
    unshared = subprocess.run(["unshare", "--mount", "true"], capture_output=True)
    if unshared.returncode or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("mounting SSHFS needs /dev/fuse and the right to mount.")
    try:
        packages.root(sshfs.PACKAGES)
    except BinaryError as error:
        pytest.skip(f"Debian's sshfs cannot be downloaded: {error}")


class Pods:
    """Pods that want one model, on nodes of their own, and the directory that the server exports."""

    def __init__(self, where: Path) -> None:
        self._where = where
        self.store = FaultStore(objects={f"m/{name}": content for name, content in FILES.items()})
        self.export = where / "export"
        self.export.mkdir()
        self.running: dict[str, Sidecar] = {}
        self.partial: list[str] = []
        """Entries that had their names before they were complete."""

    async def start(self, name: str) -> Sidecar:
        mount = self._where / name / "cache"
        mount.mkdir(parents=True)
        program = sshfs.program(self.export, mount)
        env = packages.environment(sshfs.PACKAGES) | self.store.env
        pod = Sidecar(mount.parent, env, program, cache_dir=str(mount), server="none")
        pod.config.write({"m": "s3://bucket/m"})
        self.running[name] = pod
        await asyncio.to_thread(pod.start)
        return pod

    async def kill(self, name: str) -> None:
        await asyncio.to_thread(self.running.pop(name).kill)

    def served(self) -> bool:
        """Whether all pods that run have the whole model."""
        return all(pod.on_disk() == {"m": WHOLE} for pod in self.running.values())

    def complete(self) -> bool:
        """Whether the cache has an entry; notes it if it is partial."""
        entries = [path for path in self.export.iterdir() if re.fullmatch("[0-9a-f]{64}", path.name)]
        self.partial += [path.name for path in entries if tree_bytes(path / "files") != WHOLE]
        return bool(entries)


@pytest.fixture
async def pods(tmp_path: Path) -> AsyncIterator[Pods]:
    found = Pods(tmp_path)
    await found.store.start()
    yield found
    for name in list(found.running):
        await found.kill(name)
    await found.store.stop()


@pytest.mark.parametrize("killed", ["never", "downloading", "copying"])
async def test_one_pod_downloads_for_all(pods: Pods, killed: str) -> None:
    store, gate = pods.store, asyncio.Event()
    store.gate = gate
    await pods.start("first")
    await until(lambda: store.waiting, 60)
    status = (await pods.start("second")).model_dir / STATUS_FILE
    await until(lambda: status.is_file() and b"another puller" in status.read_bytes(), 60)
    if killed == "copying":
        gate.set()
        await until(lambda: any(pods.export.glob(".work/*/files/*.bin")), 60)
    if killed != "never":
        await pods.kill("first")
        assert not pods.complete()
    gate.set()
    await until(lambda: pods.complete() and pods.served(), 120)
    assert killed != "never" or store.bytes_sent == len(WHOLE)
    sent = store.bytes_sent
    await pods.start("third")
    await until(pods.served, 60)
    assert store.bytes_sent == sent, "the third pod copies what the others left"
    assert pods.partial == []
    await until(lambda: not list(pods.export.glob(".*.lock")), 60)
    assert list(pods.export.glob(".work/*")) == []
