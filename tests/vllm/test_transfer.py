"""Two real vLLMs, one that computes prompts and one that fetches them from it and computes the answers.

A request that waits for a server that does not answer is no hang of the one that waits: it still answers.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from tests.e2e.processes import free_port
from tests.venvs import built
from tests.vllm.conftest import Keep
from tests.vllm.kubelet import Kubelet
from tests.vllm.server import ENGINE, MODEL, Vllm

pytestmark = pytest.mark.vllm

CONNECTOR: Final = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
WAITING: Final = 8
"""Requests that wait for the other server."""
PROMPT: Final = "a" * 900


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, release: str) -> Iterator[tuple[Vllm, Vllm]]:
    """The server of prompts and the server of answers."""
    unwanted = (
        "torch; python_version < '3'",
        "numpy; python_version < '3'",
        "nixl-cu12; python_version < '3'",
    )
    programs = built("vllm", "nixl", ["nixl==1.5.1"], "2026-11-20", overrides=unwanted)
    (packages,) = programs.parent.glob("lib/python3.*/site-packages")
    running: list[Vllm] = []
    try:
        for _ in range(2):
            env = {
                "PYTHONPATH": str(packages),
                "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
                "UCX_TLS": "tcp,self,sm",
            }
            transfer = ("--kv-transfer-config", json.dumps(CONNECTOR))
            options = ("--max-model-len", "1024", "--max-num-seqs", "8", *transfer)
            running.append(Vllm(tmp_path_factory.mktemp("vllm"), options, release, env))
        for each in running:
            each.wait_until_it_serves()
        yield running[0], running[1]
    finally:
        for each in running:
            each.stop()


def computed(prompts: Vllm, number: int) -> dict[str, Any]:
    """The body of a request for an answer whose prompt has been computed."""
    body = {"model": MODEL, "prompt": f"{number} {PROMPT}", "ignore_eos": True, "temperature": 0}
    wanted = {"do_remote_decode": True, "do_remote_prefill": False}
    status, said = prompts.request(
        "POST", "/v1/completions", body | {"max_tokens": 1, "kv_transfer_params": wanted}
    )
    assert status == 200, said
    return body | {"max_tokens": 20, "kv_transfer_params": json.loads(said)["kv_transfer_params"]}


@contextmanager
def waiting(answers: Vllm, bodies: list[dict[str, Any]]) -> Iterator[list[int]]:
    """Send the requests at once; yields the statuses of those that were answered."""
    statuses: list[int] = []

    def client(body: dict[str, Any]) -> None:
        statuses.append(answers.request("POST", "/v1/completions", body, 600)[0])

    for body in bodies:
        threading.Thread(target=client, args=(body,), daemon=True).start()
    yield statuses


def test_an_answer_whose_prompt_another_server_computed(pair: tuple[Vllm, Vllm]) -> None:
    prompts, answers = pair
    with waiting(answers, [computed(prompts, 0)]) as statuses:
        answers.process.wait_until(lambda: bool(statuses), 600, 1)
    assert statuses == [200]


def test_a_stopped_engine_is_restarted(pair: tuple[Vllm, Vllm], keep: Keep) -> None:
    _, answers = pair
    with Kubelet(answers.probe(), answers.env) as kubelet:
        kubelet.wait(40)
        with answers.stopped(ENGINE):
            seen = kubelet.wait(420)
    keep(seen)
    assert seen.restarted_after is not None
    answers.process.wait_until(lambda: answers.complete() == 200, 600, 1)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
def test_answers_that_wait_for_another_server(
    pair: tuple[Vllm, Vllm], keep: Keep, number: signal.Signals
) -> None:
    prompts, answers = pair
    bodies = [computed(prompts, each) for each in range(number * 100, number * 100 + WAITING)]
    prompts.signal(number)
    try:
        with waiting(answers, bodies) as statuses, Kubelet(answers.probe(), answers.env) as kubelet:
            seen = kubelet.wait(300)
            print(f"{len(statuses)} of {WAITING} answered")
    finally:
        if number is signal.SIGSTOP:
            prompts.signal(signal.SIGCONT)
    keep(seen)
    assert seen.restarted_after is None
    assert "it answers" in {result.output for result in seen.results}
