"""SIGTERM during a request of 8 seconds: real servers finish it or abort it as their presets say."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from policies.probes.preset import known_presets
from tests.servers.server import SERVED, servers
from tests.venvs import built

pytestmark = pytest.mark.servers

SLOW = SERVED / "slow"
COMMANDS = {
    "kserve": ("python", "slow.py"),
    "mlserver": ("mlserver", "start", "."),
    "bentoml": ("bentoml", "serve", "service:Slow", "--port", "3000"),
}
REQUESTS = {
    "kserve": (8080, "/v1/models/slow:predict", {"instances": [[1.0]]}),
    "mlserver": (
        8080,
        "/v2/models/slow/infer",
        {"inputs": [{"name": "x", "shape": [1], "datatype": "FP64", "data": [1.0]}]},
    ),
    "bentoml": (3000, "/predict", {}),
}
START = 300
UNDER_WAY = 3
"""Seconds after which the request is certainly under way, and long from its end."""


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_open_requests_end_as_the_preset_says(name: str, tmp_path: Path) -> None:
    server, (port, path, body) = servers()[name], REQUESTS[name]
    shutil.copytree(SLOW / name, tmp_path, dirs_exist_ok=True)
    venv = built("servers", name, server.requires, str(server.newest))
    program, *arguments = COMMANDS[name]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [str(venv / program), *arguments],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{venv}:{os.environ['PATH']}"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        ready = known_presets()[name].ready_path or "/"
        deadline = time.monotonic() + START
        while status_of(port, ready) != 200:
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-2000:]
            time.sleep(0.5)
        found: list[int] = []
        client = threading.Thread(target=lambda: found.append(status_of(port, path, body)))
        client.start()
        time.sleep(UNDER_WAY)
        process.send_signal(signal.SIGTERM)
        client.join(START)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    drain = known_presets()[name].drain
    assert drain is not None
    assert (found == [200]) is (drain.seconds != 0)


def status_of(port: int, path: str, body: object = None) -> int:
    """The status of an answer; 0 if the connection fails or ends."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
