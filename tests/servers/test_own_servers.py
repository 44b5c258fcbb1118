"""Outages of users' own servers, replayed with real ones and each kind of liveness.

The kubelet is a loop whose times are shorter, as are those of the injected program. docs/probes.md has the
table.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from policies.probes.liveness_program import program
from tests.e2e.node import images
from tests.servers.server import probes_of
from tests.venvs import built

pytestmark = pytest.mark.servers

API = images.CONTEXTS / "own-server"
"""The API, which also runs on a real node: tests/realnode/test_own_servers.py."""
REQUIRES = tuple((API / "requirements.txt").read_text().split())
NEWEST = "2026-11-20"
FASTER = 10
"""The program's own times are divided by this."""
SILENCE, PERIOD, FAILURES = 5, 1.0, 4
"""Seconds, and failures in a row until the kubelet restarts the container."""
PATIENCE = 40
"""Seconds after which a hang counts as not noticed: more than three times what any check needs."""

COMMANDS = {
    "uvicorn": "uvicorn asgi:app --host 127.0.0.1 --port {port}",
    "hypercorn": "hypercorn asgi:app --bind 127.0.0.1:{port}",
    "gunicorn": "gunicorn wsgi:app --bind 127.0.0.1:{port} --timeout 0",
    "gunicorn with threads": "gunicorn wsgi:app --bind 127.0.0.1:{port} --timeout 0 --threads 2",
    "gunicorn with a timeout": "gunicorn wsgi:app --bind 127.0.0.1:{port} --timeout 2",
}


@pytest.fixture(scope="module")
def binaries() -> Path:
    return built("servers", "own-servers", REQUIRES, NEWEST)


@contextmanager
def running(name: str, binaries: Path, folder: Path) -> Iterator[tuple[int, int]]:
    """The server's port and process group."""
    api = shutil.copytree(API, folder / "api")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    executable, *arguments = COMMANDS[name].format(port=port).split()
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [binaries / executable, *arguments], cwd=api, stdout=log, stderr=log, start_new_session=True
        )
    try:
        while ask(port, "/health", 5) != 200:
            assert server.poll() is None, (folder / "log").read_text()
            time.sleep(0.1)
        yield port, server.pid
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def ask(port: int, path: str, seconds: float) -> int | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=seconds) as answer:
            return int(answer.status)
    except OSError:
        return None


class Check:
    """The injected program, with shorter times."""

    def __init__(self, server: str, port: int, group: int, folder: Path, canary: str | None) -> None:
        words = COMMANDS[server].format(port=port).replace("127.0.0.1", "0.0.0.0").split()
        container = {"name": "a", "image": "a", "command": words}
        command = probes_of(container)["livenessProbe"]["exec"]["command"]
        plan = json.loads(command[8]) | {"silence": SILENCE, "canaries": [[canary, "{}"]] if canary else []}
        text, times = program(), ", ".join(str(each / FASTER) for each in (25, 10, 5, 8))
        for old, new in {
            '"/tmp", "/dev/shm"': f"{str(folder)!r},",
            'LATEST_CANARY = 25 + PLAN["longest"], 10, 3, 8 + PLAN["longest"]': f"LATEST_CANARY = {times}",
            "END = time.monotonic() + DEADLINE - age()": "END = time.monotonic() + DEADLINE",
            "left() - PAGE - 1": f"left() - PAGE - {1 / FASTER}",
            "jitter() % 60": "0",
            '"/proc/1/fd/1"': f'"{folder}/said"',
            # Of the machine's processes, those of the server.
            "if name.isdigit()]": f"if name.isdigit() and in_group(name, {group})]",
            "def processes():": (
                "def in_group(name, group):\n"
                "    try:\n        return os.getpgid(int(name)) == group\n"
                "    except OSError:\n        return False\n"
                "def processes():"
            ),
        }.items():
            assert old in text, old
            text = text.replace(old, new)
        self._command = [sys.executable, "-I", "-S", "-c", text, str(port), "http", "0", "", json.dumps(plan)]

    def __call__(self) -> bool:
        done = subprocess.run(self._command, capture_output=True, text=True, check=False, timeout=120)
        assert done.stderr == ""
        return done.returncode != 100


def restarted(check: Check, seconds: float) -> bool:
    """Whether the kubelet restarts the container within this time."""
    end, in_a_row = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        in_a_row = 0 if check() else in_a_row + 1
        if in_a_row == FAILURES:
            return True
        time.sleep(PERIOD)
    return False


def hang(port: int, path: str, calls: int) -> None:
    for _ in range(calls):
        threading.Thread(target=ask, args=(port, f"{path}?hang=1", 300), daemon=True).start()


@pytest.mark.parametrize(
    ("server", "path", "calls", "health", "accepts", "canary"),
    [
        ("uvicorn", "/loop", 1, True, True, True),
        ("hypercorn", "/loop", 1, True, True, True),
        ("uvicorn", "/thread", 100, False, False, True),
        ("gunicorn", "/predict", 1, True, True, True),
        ("gunicorn with threads", "/predict", 2, True, False, True),
    ],
)
def test_a_hang_is_noticed(
    server: str,
    path: str,
    calls: int,
    health: bool,
    accepts: bool,
    canary: bool,
    binaries: Path,
    tmp_path: Path,
) -> None:
    """By its health path, by the connections it accepts, by a canary."""
    with running(server, binaries, tmp_path) as (port, group):
        (first := tmp_path / "accepts").mkdir()
        (second := tmp_path / "canary").mkdir()
        checks = Check(server, port, group, first, None), Check(server, port, group, second, path)
        for _ in range(3):
            assert all(check() for check in checks)
        hang(port, path, calls)
        time.sleep(1)
        assert (ask(port, "/health", 5) != 200) is health
        assert restarted(checks[0], PATIENCE) is accepts
        assert restarted(checks[1], PATIENCE) is canary


def test_gunicorn_replaces_a_worker_that_hangs(binaries: Path, tmp_path: Path) -> None:
    with running("gunicorn with a timeout", binaries, tmp_path) as (port, _):
        hang(port, "/predict", 1)
        end = time.monotonic() + 60
        while ask(port, "/predict", 1) != 200:
            assert time.monotonic() < end


@pytest.mark.parametrize(
    ("server", "path", "clients", "seconds"),
    [("gunicorn", "/predict", 40, 0.5), ("uvicorn", "/thread", 400, 0.5), ("uvicorn", "/loop", 40, 0.05)],
)
def test_overload_restarts_nothing(
    server: str, path: str, clients: int, seconds: float, binaries: Path, tmp_path: Path
) -> None:
    """Ten times as many clients as it can answer in time, each asking again at once.

    A request uses no processor, which is the hardest case. An event loop accepts connections once in a round
    of all requests, here 2 s of 5.
    """
    with running(server, binaries, tmp_path) as (port, group):
        (first := tmp_path / "accepts").mkdir()
        (second := tmp_path / "canary").mkdir()
        checks = Check(server, port, group, first, None), Check(server, port, group, second, path)
        for _ in range(3):
            assert all(check() for check in checks)
        ended = threading.Event()

        def client() -> None:
            while not ended.is_set():
                ask(port, f"{path}?seconds={seconds}", 60)

        for _ in range(clients):
            threading.Thread(target=client, daemon=True).start()
        try:
            time.sleep(2)
            health = ask(port, "/health", 1)
            assert path == "/thread" or health is None, "a plain check of its health fails under this load"
            assert not restarted(checks[0], 20)
            assert not restarted(checks[1], 20)
        finally:
            ended.set()
