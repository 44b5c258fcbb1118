"""Variables that Kubernetes sets for a Service: the real servers that read them end with an error.

Presets name the variables as `portEnv` and `linkVariables`; the rule service-link-clash reads both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from policies.probes.preset import known_presets
from tests.servers.server import SERVED, servers
from tests.venvs import built

pytestmark = pytest.mark.servers

URL = "tcp://10.0.0.1:8000"
"""As the kubelet writes it."""
ENDS = 120
"""Seconds in which a server that reads the variable has certainly ended."""


def variables(preset: str) -> Iterator[str]:
    """The variables of a preset that a Service's name sets."""
    known = known_presets()[preset]
    yield from (name for name in known.port_env if name.endswith("_PORT"))
    yield from (each.name for each in known.link_variables if not each.with_env)


CASES = [
    (name, variable)
    for name, server in servers().items()
    if server.requires
    for variable in variables(server.preset)
    if not any(word.startswith(("--port", "-p")) for word in server.command)
]


@pytest.mark.parametrize(("name", "variable"), CASES, ids=lambda value: str(value))
def test_the_server_ends_with_an_error(name: str, variable: str, tmp_path: Path) -> None:
    server = servers()[name]
    venv = built("servers", name, server.requires, str(server.newest))
    served = SERVED / (server.served or name)
    if served.exists():
        shutil.copytree(served, tmp_path, dirs_exist_ok=True)
    shutil.copy(SERVED / "toy.py", tmp_path)
    command = [str(venv / server.command[0]), *server.command[1:]]
    environment = {
        **os.environ,
        **server.env,
        "PATH": f"{venv}:{os.environ['PATH']}",
        "PYTHONPATH": str(tmp_path),
        variable: URL,
    }
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=ENDS, check=False
    )
    assert ended.returncode != 0
    said = ended.stdout + ended.stderr
    assert URL in said or variable in said, said[-500:]


def test_some_servers_read_such_variables() -> None:
    assert {variable for _, variable in CASES} >= {"MLSERVER_HTTP_PORT", "BENTOML_PORT", "INFINITY_PORT"}
