"""The puller as a separate process, with a ConfigMap volume and a model directory."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError

from tests.e2e.processes import Process, free_port
from tests.puller.fakes import ConfigVolume, tree_bytes

FLAGS = {
    "--resync": "2",
    "--config-poll": "1",
    "--server-poll": "0.3",
    "--backoff-initial": "0.1",
    "--backoff-max": "1",
}


class Sidecar:
    """`start` and `kill` it as often as you like. `env` is added to a bare environment; `program` takes the
    puller's flags."""

    def __init__(
        self,
        where: Path,
        env: Mapping[str, str],
        program: Sequence[str] = (sys.executable, "-m", "puller"),
        **flags: str,
    ) -> None:
        self.config = ConfigVolume(where / "configs")
        self.model_dir = where / "models"
        self.port = free_port()
        self.log = where / "puller.log"
        self._env = {"PATH": os.environ["PATH"], "HOME": str(where), **env}
        given = {f"--{name.replace('_', '-')}": value for name, value in flags.items()}
        chosen = {
            "--config-dir": str(self.config.path),
            "--model-dir": str(self.model_dir),
            "--host": "127.0.0.1",
            "--port": str(self.port),
            **FLAGS,
            **given,
        }
        self._command = [*program, *(part for flag in chosen.items() for part in flag)]
        self.process: Process | None = None

    def start(self, env: Mapping[str, str] | None = None) -> None:
        self.process = Process("puller", self._command, self.log, self._env | dict(env or {}))

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process = None

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        status = self.process.terminate(30)
        self.process = None
        return status

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def models(self) -> dict[str, dict[str, Any]]:
        """The entries of /v1/models by name; empty without an answer."""
        return {entry["name"]: entry for entry in self._listed() or ()}

    def answers(self) -> bool:
        """Whether it has started: its port is open."""
        return self._listed() is not None

    def _listed(self) -> list[dict[str, Any]] | None:
        try:
            models: list[dict[str, Any]] = json.loads(self.get("/v1/models")[1])["models"]
        except (URLError, ConnectionError, TimeoutError):
            return None
        return models

    def states(self) -> dict[str, str]:
        return {name: entry["state"] for name, entry in self.models().items()}

    def on_disk(self) -> dict[str, bytes]:
        """The models with final names, complete or not."""
        found = {}
        for path in self.model_dir.iterdir() if self.model_dir.is_dir() else ():
            content = None if path.name.startswith(".") else tree_bytes(path)
            if content is not None:
                found[path.name] = content
        return found

    def wait(self, condition: Callable[[], bool], seconds: float) -> float:
        """Wait, and return how long it took."""
        assert self.process is not None
        began = time.monotonic()
        self.process.wait_until(condition, seconds)
        return time.monotonic() - began

    def peak_memory(self) -> int:
        """The largest resident set the process ever had, in bytes."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert match is not None
        return int(match[1]) * 1024
