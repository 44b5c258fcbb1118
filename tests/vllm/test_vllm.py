"""The liveness probe of a real vLLM: it never fails while the engine works, and finds every hang."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm.conftest import Keep
from tests.vllm.install import RELEASES
from tests.vllm.kubelet import Kubelet, Result, Seen, run_once
from tests.vllm.server import ENGINE, FRONT_END, WORKER, Vllm

pytestmark = pytest.mark.vllm

SLOTS = 8
"""Requests that the server works on at once."""
SMALL_CACHE = 40 * 128
"""Too few tokens for so many requests of full length: some are preempted again and again."""
EXECUTOR = ("--distributed-executor-backend", "mp")
STREAMS = 64
"""Clients at once whose answers are streamed."""
WITHIN = 300
"""Seconds within which a hung server is to be restarted."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, release: str) -> Iterator[Vllm]:
    cache = ("--num-gpu-blocks-override", str(SMALL_CACHE // RELEASES[release].block))
    # Some versions have a worker process only with this executor, on processors.
    options = ("--max-model-len", "2048", "--max-num-seqs", str(SLOTS), *cache, *EXECUTOR)
    running = Vllm(tmp_path_factory.mktemp("vllm"), options, release)
    try:
        running.wait_until_it_serves()
        yield running
    finally:
        running.stop()


def at_once(server: Vllm, times: int) -> Seen:
    """Run the probe so many times without a pause."""
    probe, seen = server.probe(), Seen()
    began = time.monotonic()
    for _ in range(times):
        started = time.monotonic()
        success, output = run_once(probe, server.env)
        now = time.monotonic()
        seen.results.append(Result(now - began, now - started, success, output))
    return seen


def watched(server: Vllm, seconds: float) -> Seen:
    """Let the kubelet ask for so long, or until it restarts the server."""
    with Kubelet(server.probe(), server.env) as kubelet:
        return kubelet.wait(seconds)


# --- what every run of CI tries ------------------------------------------------------------------


@pytest.mark.ci_vllm
def test_an_idle_server_with_an_api_key_passes(server: Vllm, keep: Keep) -> None:
    seen = at_once(server, 120)
    keep(seen)
    assert seen.failures == 0
    outputs = [result.output for result in seen.results]
    assert set(outputs[outputs.index("it answers") :]) == {"it answers"}, "the first may take too long"


@pytest.mark.ci_vllm
def test_a_loaded_server_passes(server: Vllm, keep: Keep) -> None:
    """Between two looks at a machine that does something else it may finish nothing, and is asked then;
    tests/policies/probes shows that one that finishes anything is not."""
    with server.clients(SLOTS):
        seen = watched(server, 100)
    keep(seen)
    assert seen.failures == 0
    outputs = {result.output for result in seen.results}
    assert "it works" in outputs
    assert outputs <= {"it works", "it answers", "cannot tell: no time left"}


@pytest.mark.ci_vllm
def test_a_stopped_engine_fails_until_it_continues(server: Vllm, keep: Keep) -> None:
    with server.clients(2), server.stopped(ENGINE):
        assert server.health() == 200, "the endpoint does not notice"
        seen = at_once(server, 6)
    keep(seen)
    assert not seen.results[-1].success, "it has been silent for longer than any pod's patience"
    assert seen.restarted_after is None
    server.process.wait_until(lambda: server.complete() == 200, 600, 1)
    assert at_once(server, 2).failures == 0


# --- the rest ------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [ENGINE, WORKER])
@pytest.mark.parametrize("clients", [0, SLOTS])
def test_what_hangs_is_restarted(server: Vllm, keep: Keep, part: str, clients: int) -> None:
    if not server.pids(part):
        pytest.skip("this version has no such process")
    with server.clients(clients, 2000), server.stopped(part):
        seen = watched(server, WITHIN + 60)
        assert server.health() == 200, "the endpoint does not notice"
    keep(seen)
    assert seen.restarted_after is not None
    assert 120 < seen.restarted_after < WITHIN
    server.process.wait_until(lambda: server.complete() == 200, 600, 1)


def test_what_continues_in_time_is_not_restarted(server: Vllm, keep: Keep) -> None:
    with Kubelet(server.probe(), server.env) as kubelet:
        with server.stopped(ENGINE):
            kubelet.wait(150)
        seen = kubelet.wait(120)
    keep(seen)
    assert seen.failures > 0
    assert seen.restarted_after is None
    assert seen.results[-1].success


def test_a_hung_front_end_is_restarted(server: Vllm, keep: Keep) -> None:
    with Kubelet(server.probe(), server.env) as kubelet:
        kubelet.wait(5)
        with server.stopped(FRONT_END):
            seen = kubelet.wait(WITHIN + 60)
    keep(seen)
    assert seen.restarted_after is not None
    assert seen.restarted_after < WITHIN


def test_saturated_with_fifty_times_its_capacity(server: Vllm, keep: Keep, seconds: int) -> None:
    """Most of the requests preempt each other: the cache holds fewer tokens than they ask for."""
    with server.clients(50 * SLOTS, 1500) as statuses:
        seen = watched(server, seconds)
        preempted = server.metric("vllm:num_preemptions_total")
    keep(seen)
    print(f"{len(statuses)} answers, {preempted:g} preemptions")
    assert preempted > 0
    assert seen.restarted_after is None
    assert seen.in_a_row < 3
    server.process.wait_until(lambda: server.complete() == 200, 1200, 1)


@pytest.mark.parametrize("clients", [0, SLOTS])
def test_throttled_to_a_tenth(server: Vllm, keep: Keep, seconds: int, clients: int) -> None:
    with server.clients(clients), server.throttled(0.1):
        seen = watched(server, seconds / 2)
    keep(seen)
    assert seen.restarted_after is None
    assert seen.in_a_row < 3
    server.process.wait_until(lambda: server.complete() == 200, 600, 1)


def test_one_long_step(server: Vllm, keep: Keep, seconds: int) -> None:
    """A prompt that is computed in one step, slowed down to two minutes: nothing is finished meanwhile."""
    part = WORKER if server.pids(WORKER) else ENGINE
    before = server.processor_time(part)
    assert server.complete("a" * 2000) == 200
    share = (server.processor_time(part) - before) / 120
    with server.throttled(share, part, period=10), server.clients(1, 1, "b" * 2000) as done:
        seen = watched(server, seconds / 2)
        answered = len(done)
    keep(seen)
    print(f"{answered} answers in {seen.results[-1].after:.0f} s")
    assert seen.restarted_after is None
    server.process.wait_until(lambda: server.complete() == 200, 600, 1)


def test_a_long_prefill(tmp_path: Path, release: str, keep: Keep, seconds: int) -> None:
    """One request at a time, in small pieces, with a prompt that takes as long as it is watched."""
    if not RELEASES[release].pieces:
        pytest.skip("this version computes a prompt in one step")
    options = ("--max-model-len", "30000", "--max-num-seqs", "1", "--max-num-batched-tokens", "128")
    running = Vllm(tmp_path, (*options, "--no-enable-prefix-caching"), release)
    try:
        running.wait_until_it_serves()
        before = running.processor_time()
        assert running.complete("a" * 7000) == 200
        # The work grows with the square of the prompt. Wall-clock time depends on what else the machine does.
        whole = (running.processor_time() - before) * (29_000 / 7000) ** 2
        share = min(1.0, max(0.02, whole / seconds))
        with running.throttled(share), running.clients(1, 1, "b" * 29_000) as done:
            seen = watched(running, seconds)
            answered = len(done)
        keep(seen)
        print(f"{answered} answers in {seen.results[-1].after:.0f} s")
        assert seen.restarted_after is None
        assert seen.in_a_row < 3
    finally:
        running.stop()


def test_a_front_end_too_busy_for_checks(tmp_path: Path, release: str, keep: Keep, seconds: int) -> None:
    """Its event loop streams to many clients on a small share of a processor: no check is answered in time.

    Then it is stopped.
    """
    running = Vllm(tmp_path, ("--max-model-len", "2048", "--max-num-seqs", str(STREAMS)), release)
    try:
        running.wait_until_it_serves()
        with running.clients(STREAMS, 1500, stream=True):
            for share in (0.05, 0.02, 0.01, 0.005):
                with running.throttled(share, FRONT_END):
                    late = [running.get("/metrics", 10)[0] == 0 for _ in range(3)]
                    print(f"{share:.1%} of a processor: {sum(late)} of {len(late)} answers are late")
                    if all(late):
                        seen = watched(running, seconds)
                        break
            else:
                pytest.fail("its front end answers in time")
            keep(seen)
            assert "it answers clients" in {result.output for result in seen.results}
            assert seen.restarted_after is None
            with running.stopped(FRONT_END):
                seen = watched(running, WITHIN + 60)
        keep(seen)
        assert seen.restarted_after is not None
    finally:
        running.stop()


def test_a_killed_worker_is_noticed(tmp_path: Path, release: str, keep: Keep) -> None:
    running = Vllm(tmp_path, ("--max-model-len", "2048", "--max-num-seqs", str(SLOTS), *EXECUTOR), release)
    try:
        running.wait_until_it_serves()
        if not running.pids(WORKER):
            pytest.skip("this version has no such process")
        running.signal(signal.SIGKILL, WORKER)
        seen = watched(running, WITHIN + 60) if running.process.running else Seen()
        keep(seen)
        assert seen.restarted_after is not None or not running.process.running, "it ended by itself"
    finally:
        running.stop()
