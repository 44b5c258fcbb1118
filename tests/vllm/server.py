"""A running vLLM with a toy model, the livenessProbe that the webhook gives its pod, and its clients."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.e2e.processes import Process, free_port
from tests.servers.server import probes_of
from tests.vllm.install import NEWEST, environment, vllm

KEY: Final = "secret key 'of' $HOME"
MODEL: Final = 'it\'s a "toy"; $(reboot) `reboot`'
"""The name under which the model is served: it must not be visible to a shell."""
HEADERS: Final = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
START: Final = 1800
"""Seconds that a start may take on a machine that does other things."""
FRONT_END: Final = "front end"
ENGINE: Final = "engine"
WORKER: Final = "worker"
PARTS: Final = (FRONT_END, ENGINE, WORKER)
"""Each part's processes are children of those of the part before. Some versions have no worker."""
_USER: Final = () if os.geteuid() == 0 else ("--user", "--map-root-user")
_CONTAINER: Final = ("unshare", *_USER, "--pid", "--mount", "--fork", "--mount-proc", "--kill-child")
"""The probe reads the command lines of all processes that it sees: they must be the server's."""
_HERE: Final = Path(__file__).parent


class Vllm:
    """A started server. `options` are further arguments of `vllm serve`, `env` further variables."""

    def __init__(
        self,
        folder: Path,
        options: Sequence[str] = (),
        version: str = NEWEST,
        env: Mapping[str, str] | None = None,
        port: int = 0,
    ) -> None:
        self.version = version
        self.port = port or free_port()
        self.memory = Path(f"/tmp/.mlchassis-liveness-{self.port}")
        self.args = [
            *(_model(vllm(version)), "--served-model-name", MODEL),
            *("--port", str(self.port), "--api-key", "$(TOY_KEY)", "--enforce-eager"),
            # In a virtual machine, a processor that lists AMX for bfloat16 may still refuse its instructions.
            *("--dtype", "float32"),
            *options,
        ]
        self.env = environment(version) | {"TOY_KEY": KEY, "HF_HUB_OFFLINE": "1"} | dict(env or {})
        words = [KEY if word == "$(TOY_KEY)" else word for word in self.args]  # as the kubelet expands them
        command = [*_CONTAINER, "vllm", "serve", *words]
        self.process = Process("vllm", command, folder / "vllm.log", self.env)

    def wait_until_it_serves(self) -> None:
        self.process.wait_until(self._serves, START, 0.5)

    def stop(self) -> None:
        """End all of its processes."""
        if self.process.running:
            self.signal(signal.SIGKILL)
        self.process.kill()
        self.memory.unlink(missing_ok=True)

    # --- its processes ---------------------------------------------------------------------------

    def pids(self, part: str = "") -> list[int]:
        """The processes of a part, or all. Some versions give them no titles, so the tree decides."""
        found, generation = [], _children(self.process.pid)
        for each in PARTS:
            if part == each:
                return generation
            found += generation
            generation = [child for pid in generation for child in _children(pid)]
        return found + generation

    def processor_time(self, part: str = "") -> float:
        """Seconds of processor time that it, or a part of it, has used."""
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.pids(part)]
        return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")

    def signal(self, number: signal.Signals, part: str = "") -> None:
        for pid in self.pids(part):
            os.kill(pid, number)

    @contextmanager
    def stopped(self, part: str) -> Iterator[None]:
        """SIGSTOP to those processes; SIGCONT at the end."""
        pids = self.pids(part)
        assert pids, f"vLLM has no process of its {part}"
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    @contextmanager
    def throttled(self, share: float, part: str = "", period: float = 1.0) -> Iterator[None]:
        """Let the server, or a part of it, run only for a share of the time."""
        ended = threading.Event()

        def alternate() -> None:
            while not ended.is_set():
                self.signal(signal.SIGSTOP, part)
                ended.wait(period * (1 - share))
                self.signal(signal.SIGCONT, part)
                ended.wait(period * share)

        thread = threading.Thread(target=alternate, name="throttle")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    # --- requests --------------------------------------------------------------------------------

    def complete(self, prompt: str = "a", tokens: int = 1, timeout: float = START) -> int:
        """The status of a request for a text; 0 without an answer."""
        return self.answer(prompt, tokens, timeout)[0]

    def answer(
        self,
        prompt: str,
        tokens: int,
        timeout: float = START,
        model: str = MODEL,
        opened: set[http.client.HTTPConnection] | None = None,
        stream: bool = False,
    ) -> tuple[int, str]:
        """The status of a request for the likeliest text, and the text; of a stream, as it came.

        Its connection is in `opened` meanwhile.
        """
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        body |= {"stream": True} if stream else {}
        status, said = self.request("POST", "/v1/completions", body, timeout, opened)
        whole = status == 200 and not stream
        return status, json.loads(said)["choices"][0]["text"] if whole else said.decode()

    def health(self) -> int:
        """What GET /health answers; 0 without an answer."""
        return self.get("/health")[0]

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        lines = self.get("/metrics")[1].decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0] == name)

    @contextmanager
    def clients(
        self,
        number: int,
        tokens: int = 200,
        prompt: str = "a",
        model: str = MODEL,
        stream: bool = False,
    ) -> Iterator[list[int]]:
        """So many clients that send one request after another; yields the statuses of the answers.

        A client whose request is under way at the end hangs up.
        """
        statuses: list[int] = []
        ended = threading.Event()
        opened: set[http.client.HTTPConnection] = set()

        def client() -> None:
            while not ended.is_set():
                status, _ = self.answer(prompt, tokens, 600, model, opened, stream)
                if not ended.is_set():
                    statuses.append(status)

        threads = [threading.Thread(target=client, daemon=True) for _ in range(number)]
        for thread in threads:
            thread.start()
        try:
            yield statuses
        finally:
            ended.set()
            for connection in [*opened]:
                if connection.sock is not None:
                    with suppress(OSError):  # it has just got its answer
                        connection.sock.shutdown(socket.SHUT_RDWR)

    # --- its probe -------------------------------------------------------------------------------

    def probe(self) -> dict[str, Any]:
        """The livenessProbe that the webhook gives a pod with these arguments, run among its processes."""
        container = {
            "name": "vllm",
            "image": f"vllm/vllm-openai:v{self.version}",
            "args": self.args,
            "ports": [{"containerPort": self.port}],
            "env": [{"name": "TOY_KEY", "valueFrom": {"secretKeyRef": {"name": "toy", "key": "key"}}}],
        }
        probe: dict[str, Any] = probes_of(container)["livenessProbe"]
        (front_end,) = self.pids(FRONT_END)
        inside = (
            "nsenter",
            f"--target={front_end}",
            *_USER[:1],
            "--preserve-credentials",
            "--pid",
            "--mount",
        )
        return probe | {"exec": {"command": [*inside, *probe["exec"]["command"]]}}

    def _serves(self) -> bool:
        return self.health() == 200 and self.complete() == 200

    def get(self, path: str, timeout: float = 60) -> tuple[int, bytes]:
        """The status and the body; 0 without an answer."""
        return self.request("GET", path, timeout=timeout)

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        timeout: float = START,
        opened: set[http.client.HTTPConnection] | None = None,
    ) -> tuple[int, bytes]:
        """The status and the body; 0 without an answer. Meanwhile its connection is in `opened`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        opened = set() if opened is None else opened
        opened.add(connection)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), HEADERS)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            opened.discard(connection)
            connection.close()


def _children(pid: int) -> list[int]:
    """The processes that a process has started, without Python's own."""
    found = [
        child
        for thread in Path(f"/proc/{pid}/task").glob("*/children")
        for child in map(int, thread.read_text().split())
    ]
    return [pid for pid in found if "resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_text()]


def model_of(version: str = NEWEST) -> Path:
    """The folder of the toy model."""
    return Path(_model(vllm(version)))


def _model(programs: Path) -> str:
    """The folder of the toy model, made once for each environment."""
    folder = programs.parent / "toy"
    with (programs.parent / "toy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            subprocess.run([programs / "python", _HERE / "toy" / "make.py", folder], check=True)
            (folder / "complete").touch()
    return str(folder)
