"""A vLLM that starts as in a container: the first process of new namespaces, with a CPU quota."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from policies.containers.commands import PYTHON_SHELL
from policies.probes.liveness_program import program
from tests.e2e.processes import Process, free_port
from tests.servers.sandbox import Quota
from tests.servers.server import probes_of
from tests.vllm.install import NEWEST, environment
from tests.vllm.kubelet import Kubelet

FASTER: Final = 10
"""All times of the program are divided by this, so that 6 minutes are worth an hour; amounts as well, but for
memory, which moves in steps."""
_HUB: Final = Path(__file__).with_name("hub.py")
_NAMESPACES: Final = ("unshare", "--pid", "--net", "--mount", "--fork", "--mount-proc", "--kill-child")


class Starting:
    """A vLLM from its first moment on: `arguments` follow `vllm serve`, `start` is the program's START."""

    def __init__(
        self,
        folder: Path,
        arguments: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        start: int = 72000,
        version: str = NEWEST,
    ) -> None:
        self.folder, self.port, self._start = folder, free_port(), start // FASTER
        self.env = environment(version) | dict(env or {})
        self._quota = Quota(str(self.port))
        serve = ["vllm", "serve", *arguments, "--port", str(self.port), "--max-model-len", "256"]
        network = ["sh", "-c", 'ip link set lo up; exec "$@"', "sh"]
        command = [*_NAMESPACES, *self._quota.joining, *network, *serve]
        self.process = Process("vllm", command, folder / "vllm.log", self.env)
        self._others: list[subprocess.Popen[bytes]] = []

    @property
    def first(self) -> int:
        """The first process of its namespace, as it is numbered outside."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    def quota(self, share: float | None) -> None:
        """Give it so much of one processor; None: as much as there is."""
        self._quota.set(share)

    def hub(self, port: int, model: Path, rate: float, stops_after: float = float("inf")) -> None:
        """Start a hub in its network, but not among its processes."""
        inside = ["nsenter", "--target", str(self.first), "--net", sys.executable, str(_HUB)]
        command = [*inside, str(port), str(model), str(rate), str(stops_after)]
        self._others.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))

    def kubelet(self) -> Kubelet:
        """Asks as the kubelet does, `FASTER` times as often; the probe runs in the container, on its
        quota."""
        text = program()
        for old, new in {
            "STALLED = 900": f"STALLED = {900 // FASTER}",
            "LEAST = (30.0, 8 << 20, 1 << 20, 64 << 10)": "LEAST = (3.0, 8 << 20, 1e5, 6500)",
            "jitter() % 300": f"jitter() % {300 // FASTER}",
        }.items():
            assert old in text
            text = text.replace(old, new)
        inside = ["nsenter", "--target", str(self.first), "--pid", "--net", "--mount"]
        container = {"name": "vllm", "image": "vllm/vllm-openai", "args": ["--model=toy"]}
        given = probes_of(container)["livenessProbe"]["exec"]["command"][7:]
        run = [*PYTHON_SHELL, text, str(self.port), "http", str(self._start), *given]
        command = [*self._quota.joining, *inside, *run]
        probe: dict[str, Any] = {"exec": {"command": command}, "timeoutSeconds": 30, "failureThreshold": 6}
        return Kubelet(probe, self.env, 30 / FASTER)

    def answers(self) -> bool:
        """Whether it serves."""
        ask = (
            f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{self.port}/health', timeout=9)"
        )
        inside = ["nsenter", "--target", str(self.first), "--net", sys.executable, "-c", ask]
        return subprocess.run(inside, capture_output=True, check=False).returncode == 0

    def stop(self) -> None:
        """End all of its processes."""
        self.quota(None)
        if self.process.running:
            with contextlib.suppress(OSError, IndexError):  # it has just ended
                os.kill(self.first, signal.SIGKILL)  # its namespace ends with it
        self.process.kill()
        for other in self._others:
            other.kill()
            other.wait()
        for subject in ("start", "liveness"):
            Path(f"/tmp/.mlchassis-{subject}-{self.port}").unlink(missing_ok=True)
        self._quota.remove()
