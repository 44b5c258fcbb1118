"""Each preset against the real server: not before it is ready, then always, and not once it hangs."""

from __future__ import annotations

import datetime
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from policies.probes.preset import known_presets
from tests.e2e.processes import ProcessFailedError
from tests.servers.noticing import (
    CLIENTS,
    asking,
    busiest_thread,
    keep_asking,
    kill,
    roles,
    stopped,
    thread_stopped,
    watch,
)
from tests.servers.running import START, Running, starting
from tests.servers.server import NOTICED, Server, calls_toy, described, record, servers

pytestmark = pytest.mark.servers

MAX_ROLES = 4
"""Kinds of processes of one server that are stopped, the first being its main process."""


@pytest.fixture
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    """The server, just started; while a toy's weights are awaited, it is not ready."""
    name, server = request.param
    with starting(name, server, tmp_path, hasten=True) as started:
        yield started


@pytest.mark.parametrize(
    "running",
    [
        pytest.param((name, server), id=name, marks=[pytest.mark.ci_server] if server.ci else [])
        for name, server in servers().items()
    ],
    indirect=True,
)
def test_the_server_behaves_as_in_its_preset(running: Running, request: pytest.FixtureRequest) -> None:
    ready = {"readinessProbe"} if known_presets()[running.server.preset].ready_path else set()
    assert set(running.probes) == {"startupProbe", "livenessProbe"} | ready

    while_loading = _not_before_it_is_ready(running)
    asked, missed = _always_under_load(running)
    _not_once_it_hangs(running)

    if request.config.getoption("--record", default=False):
        record(
            request.node.callspec.id,
            {
                "preset": running.server.preset,
                "server": running.server.version,
                "command": " ".join(running.server.command),
                "on": datetime.date.today(),
                "probes": {name: described(probe) for name, probe in running.probes.items()},
                "whileLoading": while_loading,
                "underLoad": {"asked": asked, "missed": missed},
            },
        )


@pytest.mark.parametrize(
    "running", [pytest.param(each, id=each[0]) for each in servers().items()], indirect=True
)
def test_what_its_probes_notice(running: Running, request: pytest.FixtureRequest) -> None:
    """No process is stopped, killed or kept waiting without a record of who noticed."""
    _not_before_it_is_ready(running)
    rows: dict[str, dict[str, Any]] = {}
    titles = [*roles(running.container)][:MAX_ROLES]
    for title in titles:
        with stopped(roles(running.container)[title]):
            row = rows[f"stopped: {title}"] = _watched(running, recovers=True)
        if not _goes_on(running):
            row["endsLater"] = True
            row["restart"] = _serves_after_a_restart(running)
    with asking(running.server.request, CLIENTS, 200):
        rows["clients never read"] = _watched(running, recovers=True)
    running.waits(lambda: _serves(running))
    for title in titles[1:]:
        kill(roles(running.container)[title])
        row = rows[f"killed: {title}"] = _watched(running, recovers=True)
        if not running.container.process.running or running.request(START / 10) != 200:
            row["restart"] = _serves_after_a_restart(running)
            break
    _keep(request, running.server, rows)


@pytest.mark.parametrize(
    "running",
    [pytest.param(each, id=each[0]) for each in servers().items() if calls_toy(each[0])],
    indirect=True,
)
def test_what_its_probes_notice_of_its_model(running: Running, request: pytest.FixtureRequest) -> None:
    """A model that hangs, fails, is slow or does not load: who notices is recorded."""
    began = time.monotonic()
    _not_before_it_is_ready(running)
    took = time.monotonic() - began
    rows: dict[str, dict[str, Any]] = {}

    with asking(running.server.request, CLIENTS, 200):
        rows["clients never read"] = _watched(running, recovers=True)
    running.waits(lambda: _serves(running))
    running.fault("slow").touch()
    with keep_asking(running.request, CLIENTS):
        time.sleep(2)
        rows[f"{CLIENTS} clients at once, each answer takes 1 s"] = _watched(running, recovers=True)
    running.fault("slow").unlink()
    running.waits(lambda: _serves(running))

    running.fault("broken").touch()
    rows["every call fails as after a GPU error"] = row = _watched(running)
    running.fault("broken").unlink()
    try:
        running.waits(lambda: _serves(running))
    except ProcessFailedError:  # Infinity never serves again
        row["restart"] = _serves_after_a_restart(running)

    for calls in (1, CLIENTS):
        running.fault("stuck").touch()
        with asking(running.server.request, calls):
            running.waits(lambda: any(running.folder.glob("at-work-*")))
            time.sleep(2)
            running.fault("stuck").unlink()
            what = "1 call never returns" if calls == 1 else f"{calls} calls never return"
            rows[what] = row = _watched(running, recovers=True)
            row["restart"] = _serves_after_a_restart(running)
        for left in running.folder.glob("at-work-*"):
            left.unlink()

    _keep(request, running.server, rows)
    if "weights" not in running.server.lacks:
        _keep(request, running.server, {"the model fails to load": _fails_to_load(running, took)})


@pytest.mark.parametrize(
    "running",
    [pytest.param(each, id=each[0]) for each in servers().items() if each[1].slow],
    indirect=True,
)
def test_what_its_probes_notice_of_the_thread_of_its_model(
    running: Running, request: pytest.FixtureRequest
) -> None:
    """The same for a server whose model is its own: the thread that computes is stopped."""
    began = time.monotonic()
    _not_before_it_is_ready(running)
    took = time.monotonic() - began
    rows: dict[str, dict[str, Any]] = {}

    def slow() -> int:
        return running.request(asked=running.server.slow)

    with keep_asking(slow, CLIENTS):
        time.sleep(2)
        rows[f"{CLIENTS} clients at once, each answer takes 1 s"] = _watched(running, recovers=True)
    running.restart()
    running.waits(lambda: _serves(running))
    for calls in (1, CLIENTS):
        thread = busiest_thread(running.container, slow)
        with thread_stopped(thread), asking(running.server.request, calls):
            what = "1 call never returns" if calls == 1 else f"{calls} calls never return"
            row = rows[what] = _watched(running, recovers=True)
        row["restart"] = _serves_after_a_restart(running)
    rows["the model fails to load"] = _fails_to_load(running, took)
    _keep(request, running.server, rows)


def _fails_to_load(running: Running, took: float) -> dict[str, Any]:
    """What is noticed of weights that are no weights. `took`: how long loading takes."""
    running.weights.write_bytes(b"truncated")
    running.restart()
    time.sleep(1.5 * took)
    row = _watched(running)
    row["started"] = running.container.process.running and _asked_once(running, "startupProbe")
    row["ended"] = not running.container.process.running
    return row


def _watched(running: Running, *, recovers: bool = False) -> dict[str, Any]:
    by_progress = running.by_progress("livenessProbe")
    seen = watch(
        lambda name: _asked_once(running, name), running.request, recovers=recovers, by_progress=by_progress
    )
    return {key: value for key, value in asdict(seen).items() if value is not None}


def _serves(running: Running) -> bool:
    """Whether it answers a client and all probes, twice: progress is known by the second answer."""
    return all(running.request() == 200 and running.succeeds(*running.probes) for _ in range(2))


def _goes_on(running: Running) -> bool:
    """Whether the server serves again; False if it ends instead."""
    try:
        running.waits(lambda: _serves(running))
    except ProcessFailedError:
        if running.container.process.running:
            raise
        return False
    return True


def _serves_after_a_restart(running: Running) -> bool:
    running.restart()
    running.waits(lambda: _serves(running))
    return True


def _keep(request: pytest.FixtureRequest, server: Server, rows: dict[str, dict[str, Any]]) -> None:
    """Record the rows, next to those that another test recorded of the same version."""
    print(rows)
    if not request.config.getoption("--record", default=False):
        return
    what = {"server": server.version, "preset": server.preset, "on": datetime.date.today()}
    record(request.node.callspec.id, {**what, "seen": rows}, NOTICED)


def _asked_once(running: Running, name: str) -> bool:
    return running.ask(name).success


def _not_before_it_is_ready(running: Running) -> str:
    """Readiness does not succeed while the model loads; once it does, a client is served.

    A server that passes its startupProbe while it loads must keep its liveness, too.
    """
    if not running.server.toy:
        while_loading = "a client was served at the first success"
    else:
        while_loading = _while_it_loads(running)
    running.waits(lambda: running.succeeds("startupProbe"))
    running.waits(lambda: running.succeeds("readinessProbe"))
    assert running.request() == 200, running.seen
    assert running.succeeds("livenessProbe")
    return while_loading


def _while_it_loads(running: Running) -> str:
    """Ask while its weights are withheld, then let them come; return the observations."""
    weights = _opened_by_the_server(running)
    with ThreadPoolExecutor(1) as pool:
        try:
            early: Future[int] | None = None
            if running.server.queues:
                running.waits(lambda: running.succeeds("readinessProbe"))
                seen = "readiness succeeds, requests wait for the model"
                early = pool.submit(running.request)
            else:
                ready = running.asked("readinessProbe")
                assert not any(each.answer.success for each in ready), ready
                seen = f"readiness: {ready[0].answer.detail}"
            started = running.asked("startupProbe")
            if any(each.answer.success for each in started):
                assert running.succeeds("startupProbe", "livenessProbe"), started
                seen += "; liveness succeeds"
        finally:
            (running.folder / "loaded").touch()
            (running.folder / "loaded").replace(running.weights)
            os.close(weights)
        assert early is None or early.result() == 200, running.seen
    return seen


def _opened_by_the_server(running: Running) -> int:
    """The writing end of the FIFO in place of the weights, as soon as the server reads it."""
    opened: list[int] = []

    def reads() -> bool:
        try:
            opened.append(os.open(running.weights, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # ENXIO: no reader yet
            return False
        return True

    running.waits(reads)
    return opened[0]


def _always_under_load(running: Running) -> tuple[int, int]:
    """Every probe keeps what the kubelet asks of it while all workers are busy longer than readiness waits.

    Returns how often it was asked, and how many of those times it did not succeed.
    """
    asked = [name for name in ("livenessProbe", "readinessProbe") if name in running.probes]
    longest = running.probes[asked[-1]].get("timeoutSeconds", 1)
    busy = threading.Timer(longest + 1, running.busy.unlink, (True,))
    counts = {"asked": 0, "missed": 0}
    finished = threading.Event()
    running.busy.touch()

    def client() -> list[int]:
        statuses = [running.request()]
        while not running.server.toy and not finished.is_set():
            statuses.append(running.request())
        return statuses

    with ThreadPoolExecutor(running.server.clients) as pool:
        clients = [pool.submit(client) for _ in range(running.server.clients)]
        try:
            if running.server.toy:
                running.waits(lambda: any(running.folder.glob("at-work-*")))
            in_a_row = dict.fromkeys(asked, 0)
            busy.start()
            while running.busy.exists():
                answers = running.asked(*in_a_row)
                failed = [each for each in answers if not each.answer.success]
                counts["asked"] += len(answers)
                counts["missed"] += len(failed)
                for name in in_a_row:
                    missed = any(each.probe == name for each in failed)
                    in_a_row[name] = in_a_row[name] + 1 if missed else 0
                    # The kubelet acts only on so many failures in a row; the test's are closer together.
                    assert in_a_row[name] < running.probes[name]["failureThreshold"], failed
        finally:
            finished.set()
            busy.cancel()
            running.busy.unlink(missing_ok=True)
        statuses = {status for each in clients for status in each.result()}
        # A toy answers everybody in the end. Another server may drop clients: MLflow's supervisor kills its
        # workers when they are starved; the probes must not make that worse.
        assert statuses == {200} if running.server.toy else 200 in statuses, running.seen
    return counts["asked"], counts["missed"]


def _not_once_it_hangs(running: Running) -> None:
    """A frozen server fails every probe but an open port; and it was the freezing, since it answers again."""
    running.waits(lambda: _serves(running))
    running.container.freeze()
    answers = running.asked(*(name for name, probe in running.probes.items() if "httpGet" in probe))
    assert not any(each.answer.success for each in answers), answers
    running.waits(lambda: not running.succeeds("livenessProbe"))
    running.container.thaw()
    running.waits(lambda: running.succeeds(*running.probes))
