"""Each preset against the real server: not before it is ready, then always, and not once it hangs."""

from __future__ import annotations

import datetime
import http.client
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.processes import ProcessFailedError
from tests.servers.kubelet import Answer, ask, hastened, run
from tests.servers.noticing import CLIENTS, asking, keep_asking, kill, roles, stopped, watch
from tests.servers.sandbox import ADDRESS, HOSTS, INSIDE, Container, pod_network
from tests.servers.server import (
    NOTICED,
    SERVED,
    Server,
    calls_toy,
    described,
    injected,
    record,
    recorded,
    servers,
)
from tests.venvs import built, installed

pytestmark = pytest.mark.servers

START = 300
"""Seconds that a server may take to start, or to answer all that it was asked; far more than any needs."""

MAX_ROLES = 4
"""Kinds of processes of one server that are stopped, the first being its main process."""


class Asked(NamedTuple):
    """One question of the kubelet's, and its result."""

    probe: str
    host: str
    answer: Answer


@dataclass
class Running:
    """A started server, its probes, and the hold that the test has over its toy model."""

    server: Server
    probes: dict[str, Any]
    container: Container
    folder: Path
    start: Callable[[], Container]
    seen: list[str] = field(default_factory=list)

    @property
    def weights(self) -> Path:
        return self.folder / "weights"

    @property
    def busy(self) -> Path:
        return self.folder / "busy"

    def fault(self, name: str) -> Path:
        """The file that makes every call of the toy model do something else while it exists."""
        return self.folder / name

    def restart(self) -> None:
        """What the kubelet does to a container that hangs."""
        self.container.remove()
        self.container = self.start()

    def asked(self, *names: str) -> list[Asked]:
        """What these probes get, at once, for each of the pod's addresses in the Host header."""
        questions = [
            (name, host) for name in names for host in (HOSTS[:1] if self.by_progress(name) else HOSTS)
        ]
        with ThreadPoolExecutor(len(questions)) as pool:
            return list(pool.map(lambda each: Asked(each[0], each[1], self.ask(*each)), questions))

    def by_progress(self, name: str) -> bool:
        """Whether a probe runs the program that checks progress."""
        return "exec" in self.probes[name]

    def ask(self, name: str, host: str = HOSTS[0]) -> Answer:
        """What a probe gets once."""
        probe = self.probes[name]
        if "exec" not in probe:
            return ask(probe, ADDRESS, host)
        if not self.container.runs:
            return Answer(False, "the container has ended")
        command = self.container.inside(probe["exec"]["command"])
        return run(command, self.container.env, probe["timeoutSeconds"])

    def succeeds(self, *names: str) -> bool:
        return all(each.answer.success for each in self.asked(*names))

    def waits(self, ready: Callable[[], bool]) -> None:
        self.container.process.wait_until(ready, START, 0.2)

    def request(self, timeout: float = START) -> int:
        """The status of a client's request; 0 where no answer came."""
        asked = self.server.request
        connection = http.client.HTTPConnection(ADDRESS, asked.port, timeout=timeout)
        try:
            if asked.body is None:
                connection.request("GET", asked.path, headers=dict(asked.headers))
            else:
                headers = {"Content-Type": "application/json", **asked.headers}
                connection.request("POST", asked.path, json.dumps(asked.body), headers)
            response = connection.getresponse()
            self.seen.append(response.read().decode(errors="replace")[:500])
        except (OSError, http.client.HTTPException) as error:
            self.seen.append(f"{type(error).__name__}: {error}")
            return 0
        else:
            return response.status
        finally:
            connection.close()


@pytest.fixture
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    """The server, just started; while a toy's weights are awaited, it is not ready."""
    if os.geteuid():
        pytest.skip("a network namespace of its own needs root")
    name, server = request.param
    probes = {field: hastened(probe) for field, probe in injected(server).items()}
    if server.go:
        venv = installed(server.go, server.command[0])
    else:
        venv = built("servers", name, server.requires, str(server.newest))
    folder = tmp_path / "served"
    served = SERVED / (server.served or name)
    shutil.copytree(served, folder) if served.exists() else folder.mkdir()
    shutil.copy(SERVED / "toy.py", folder)
    program = [str(next(venv.parent.glob(server.program)).parent)] if server.program else []
    env = {
        "PATH": os.pathsep.join([str(venv), *program, os.environ["PATH"]]),
        "HOME": "/mnt",
        "LANG": "C.UTF-8",
        "PYTHONPATH": INSIDE,
        "TOY_WEIGHTS": f"{INSIDE}/weights",
        "TOY_BUSY": f"{INSIDE}/busy",
        **server.env,
    }
    os.mkfifo(folder / "weights")
    with pod_network(), ExitStack() as stack:

        def started(command: tuple[str, ...], log: str) -> Container:
            container = Container(name, command, tmp_path / log, env, tmp_path)
            stack.callback(container.remove)
            return container

        if server.prepare:
            status = started(server.prepare, "log-prepare").process.wait_until_it_ends(START)
            assert status == 0, (tmp_path / "log-prepare").read_text()
        if server.beside:
            started(server.beside, "log-beside")
        yield Running(
            server, probes, started(server.command, "log"), folder, lambda: started(server.command, "log")
        )


@pytest.mark.parametrize(
    "running",
    [
        pytest.param((name, server), id=name, marks=[pytest.mark.ci_server] if server.ci else [])
        for name, server in servers().items()
    ],
    indirect=True,
)
def test_the_server_behaves_as_in_its_preset(running: Running, request: pytest.FixtureRequest) -> None:
    assert set(running.probes) == {"startupProbe", "livenessProbe", "readinessProbe"}

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
        rows["clients never read"] = _watched(running)
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
    rows["every call fails as after a GPU error"] = _watched(running)
    running.fault("broken").unlink()
    running.waits(lambda: _serves(running))

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
    running.weights.write_bytes(b"truncated")
    running.restart()
    time.sleep(1.5 * took)
    row = rows["the model fails to load"] = _watched(running)
    row["started"] = running.container.process.running and _asked_once(running, "startupProbe")
    row["ended"] = not running.container.process.running
    _keep(request, running.server, rows)


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
    name = request.node.callspec.id
    before = recorded(NOTICED).get(name, {})
    kept = before["seen"] if before.get("server") == server.version else {}
    what = {"server": server.version, "preset": server.preset, "on": datetime.date.today()}
    record(name, {**what, "seen": kept | rows}, NOTICED)


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
    busy = threading.Timer(
        running.probes["readinessProbe"].get("timeoutSeconds", 1) + 1, running.busy.unlink, (True,)
    )
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
            in_a_row = {"livenessProbe": 0, "readinessProbe": 0}
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
    """A frozen server fails every probe; and it was the freezing, since it answers again afterwards."""
    running.waits(lambda: _serves(running))
    running.container.freeze()
    answers = running.asked(*(name for name in running.probes if not running.by_progress(name)))
    assert not any(each.answer.success for each in answers), answers
    running.waits(lambda: not running.succeeds("livenessProbe"))
    running.container.thaw()
    running.waits(lambda: running.succeeds(*running.probes))
