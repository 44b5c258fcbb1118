"""LoRA adapters in a real vLLM: loaded, replaced, unloaded, and loaded again after a restart."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.puller.sidecar import Sidecar
from tests.vllm.install import vllm
from tests.vllm.server import KEY, MODEL, Vllm

pytestmark = pytest.mark.vllm

OPTIONS: Final = ("--max-model-len", "256", "--max-num-seqs", "4", "--enable-lora", "--max-lora-rank", "8")
CACHED: Final = ("--max-loras", "1", "--max-cpu-loras", "2")
"""Fewer than there are adapters: vLLM reads one again from its path whenever it dropped it from memory."""
ENV: Final = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
PROMPT: Final = "once upon a time, and it was a long time ago, there was a fox"
"""Longer than a block of the prefix cache."""


def started(folder: Path, release: str, port: int = 0) -> Vllm:
    server = Vllm(folder, (*OPTIONS, *CACHED), release, ENV, port)
    try:
        server.wait_until_it_serves()
    except BaseException:
        server.stop()
        raise
    return server


@pytest.fixture
def adapters(tmp_path: Path, release: str) -> Callable[[int], str]:
    """The URI of an adapter with random weights."""

    def made(seed: int) -> str:
        folder = tmp_path / f"adapter-{seed}"
        script = Path(__file__).parent / "toy" / "adapter.py"
        subprocess.run([vllm(release) / "python", script, folder, str(seed)], check=True)
        return folder.as_uri()

    return made


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Callable[[Vllm], Sidecar]]:
    running: list[Sidecar] = []

    def start(server: Vllm) -> Sidecar:
        env = {"CHASSIS_PULLER_SERVER_API_KEY": KEY}
        url = f"http://127.0.0.1:{server.port}"
        running.append(Sidecar(tmp_path, env, server="vllm", server_url=url))
        running[0].start()
        return running[0]

    yield start
    for each in running:
        each.kill()


def listed(server: Vllm) -> set[str]:
    body = json.loads(server.get("/v1/models")[1])
    return {card["id"] for card in body["data"]} - {MODEL}


def test_adapters_are_kept_equal_to_the_config(
    tmp_path: Path,
    release: str,
    adapters: Callable[[int], str],
    sidecar: Callable[[Vllm], Sidecar],
) -> None:
    one, two, three = adapters(1), adapters(2), adapters(3)
    server = started(tmp_path, release)
    try:
        puller = sidecar(server)

        def is_loaded(*names: str) -> bool:
            return puller.states() == dict.fromkeys(names, "Loaded")

        def answers(name: str) -> tuple[int, str]:
            return server.answer(PROMPT, 16, model=name)

        def says(name: str) -> str:
            status, text = answers(name)
            assert status == 200, text
            return text

        # Loaded: each answers in its own way, also after vLLM dropped it from memory.
        puller.config.write({"a": one, "b": two, "c": three})
        puller.wait(lambda: is_loaded("a", "b", "c"), 120)
        assert listed(server) == {"a", "b", "c"}
        first = {name: says(name) for name in ("a", "b", "c")}
        assert len({says(MODEL), *first.values()}) == 4
        assert {name: says(name) for name in ("a", "b", "c")} == first

        # Replaced by another version, under traffic: requests finish, or find no adapter for a moment.
        with server.clients(2, tokens=4, prompt=PROMPT, model="a") as statuses:
            puller.config.write({"a": {"storageUri": two, "version": "2"}, "b": two, "c": three})
            puller.wait(lambda: is_loaded("a", "b", "c") and answers("a") == (200, first["b"]), 120)
        print("statuses:", {status: statuses.count(status) for status in set(statuses)})
        assert set(statuses) <= {200, 404}

        # One that vLLM refuses says so, and keeps no other.
        bad = tmp_path / "bad"
        bad.mkdir()
        (bad / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 999}')
        puller.config.write({"a": two, "bad": bad.as_uri()})
        puller.wait(lambda: puller.states() == {"a": "Loaded", "bad": "Failed"}, 120)
        print("refused:", puller.models()["bad"]["message"])
        assert listed(server) == {"a"}

        # A server that restarts has lost its adapters: they come back without an edit.
        puller.config.write({"a": two, "b": three})
        puller.wait(lambda: is_loaded("a", "b"), 120)
        server.stop()
        server = started(tmp_path, release, server.port)
        puller.wait(lambda: is_loaded("a", "b") and listed(server) == {"a", "b"}, 120)
        assert (says("a"), says("b")) == (first["b"], first["c"])

        # Unloaded.
        puller.config.write({})
        puller.wait(lambda: puller.models() == {} and listed(server) == set(), 60)
        assert server.answer(PROMPT, 1, model="a")[0] == 404
    finally:
        server.stop()


def test_without_the_switch_the_status_names_it(
    tmp_path: Path,
    release: str,
    adapters: Callable[[int], str],
    sidecar: Callable[[Vllm], Sidecar],
) -> None:
    uri = adapters(1)
    server = Vllm(tmp_path, OPTIONS[:4], release)
    try:
        server.wait_until_it_serves()
        puller = sidecar(server)
        puller.config.write({"a": uri})
        puller.wait(lambda: puller.states() == {"a": "Failed"}, 60)
        message = puller.models()["a"]["message"]
        assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in message, message
        assert server.complete() == 200
    finally:
        server.stop()
