"""The start of a real vLLM: one that hangs is restarted, one that is slow never is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.e2e.processes import free_port
from tests.vllm.conftest import Keep
from tests.vllm.container import FASTER, Starting
from tests.vllm.server import model_of

pytestmark = pytest.mark.vllm

FOUND = (900 + 300 + 180 + 120) / FASTER
"""Seconds after which what hangs from the beginning is restarted at the latest."""
IMPORTS = 900
"""Seconds that importing vLLM may take on a machine that does other things."""
HUNG_IMPORT = "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()\n"
MEGABYTE = 1_000_000.0

Start = Callable[..., Starting]


@pytest.fixture
def start(tmp_path: Path, release: str) -> Iterator[Start]:
    running: list[Starting] = []

    def started(arguments: Sequence[str], env: Mapping[str, str] | None = None, **options: int) -> Starting:
        running.append(Starting(tmp_path, arguments, env, version=release, **options))
        running[-1].process.wait_until(lambda: bool(_first(running[-1])), 60)
        return running[-1]

    yield started
    for each in running:
        each.stop()


def _first(server: Starting) -> int:
    try:
        return server.first
    except (OSError, IndexError):
        return 0


def downloads(start: Start, model: Path, stops_after: float = float("inf")) -> Starting:
    port = free_port()
    env = {
        "HF_ENDPOINT": f"http://127.0.0.1:{port}",
        "HF_HOME": str(model.parent / "hub"),
        "HF_HUB_DOWNLOAD_TIMEOUT": "86400",
        "HF_HUB_DISABLE_XET": "1",
    }
    server = start(["toy/model", "--enforce-eager"], env)
    server.hub(port, model, MEGABYTE, stops_after)
    incomplete = model.parent / "hub" / "hub" / "models--toy--model" / "blobs"
    server.process.wait_until(lambda: any(incomplete.glob("*safetensors*.incomplete")), IMPORTS, 1)
    return server


@pytest.fixture
def model(tmp_path: Path, release: str) -> Path:
    """The toy model in a folder of the test."""
    (folder := tmp_path / "model").mkdir()
    for file in model_of(release).iterdir():
        if file.is_file():
            (folder / file.name).symlink_to(file)
    return folder


def test_a_download_of_one_megabyte_a_second_survives(start: Start, model: Path, keep: Keep) -> None:
    server = downloads(start, model)
    with server.kubelet() as kubelet:
        seen = kubelet.wait(3600 / FASTER)
    keep(seen)
    assert seen.failures == 0


def test_a_download_whose_connection_hangs_is_restarted(start: Start, model: Path, keep: Keep) -> None:
    server = downloads(start, model, 5 * MEGABYTE)
    with server.kubelet() as kubelet:
        seen = kubelet.wait(FOUND + 60)
    keep(seen)
    assert seen.restarted_after is not None
    assert 900 / FASTER < seen.restarted_after < FOUND + 30


def test_a_deadlocked_import_is_restarted(start: Start, tmp_path: Path, keep: Keep) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "regex.py").write_text(HUNG_IMPORT)
    server = start(["toy/model"], {"PYTHONPATH": str(tmp_path / "path")})
    with server.kubelet() as kubelet:
        seen = kubelet.wait(FOUND + IMPORTS)
    keep(seen)
    assert seen.restarted_after is not None


def test_a_rendezvous_without_a_second_member_is_restarted(start: Start, model: Path, keep: Keep) -> None:
    arguments = ("--data-parallel-size", "2", "--data-parallel-size-local", "1", "--enforce-eager")
    server = start([str(model), *arguments, "--data-parallel-address", "127.0.0.1"])
    with server.kubelet() as kubelet:
        seen = kubelet.wait(FOUND + IMPORTS)
    keep(seen)
    assert seen.restarted_after is not None


def test_throttled_to_a_tenth_it_survives(start: Start, model: Path, keep: Keep) -> None:
    server = start([str(model), "--enforce-eager"])
    server.quota(0.1)
    with server.kubelet() as kubelet:
        seen = kubelet.wait(3600 / FASTER)
    keep(seen)
    assert seen.failures == 0


def test_compilation_and_warm_up_survive(start: Start, model: Path, tmp_path: Path, keep: Keep) -> None:
    """The whole start, with an empty cache of compiled code."""
    server = start([str(model)], {"VLLM_CACHE_ROOT": str(tmp_path / "cache")})
    with server.kubelet() as kubelet:
        server.process.wait_until(server.answers, 3600, 1)
        seen = kubelet.wait(60)
    keep(seen)
    assert seen.failures == 0
    assert seen.results[-1].output in ("it works", "it answers")


def test_the_budget_ends_a_start_that_spins(start: Start, tmp_path: Path, keep: Keep) -> None:
    """Its CPU time moves for ever: this is not found sooner."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "regex.py").write_text("while True:\n    pass\n")
    server = start(["toy/model"], {"PYTHONPATH": str(tmp_path / "path")}, start=2400)
    server.quota(0.2)
    with server.kubelet() as kubelet:
        seen = kubelet.wait(600)
    keep(seen)
    assert seen.restarted_after is not None
    assert seen.restarted_after > 2400 / FASTER
    assert all("has not answered" in each.output for each in seen.results if not each.success)
