"""A server that a test has started, its probes, and the hold that the test has over its toy model."""

from __future__ import annotations

import http.client
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.servers.kubelet import Answer, ask, hastened, run
from tests.servers.sandbox import ADDRESS, HOSTS, INSIDE, Container, pod_network
from tests.servers.server import SERVED, Request, Server, injected
from tests.venvs import built, installed

START = 300
"""Seconds that a server may take to start, or to answer all that it was asked; far more than any needs."""


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
        return self.folder / self.server.weights

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
        with ThreadPoolExecutor(max(len(questions), 1)) as pool:
            return list(pool.map(lambda each: Asked(each[0], each[1], self.ask(*each)), questions))

    def by_progress(self, name: str) -> bool:
        """Whether a probe runs the program that checks progress."""
        return "exec" in self.probes.get(name, {})

    def ask(self, name: str, host: str = HOSTS[0]) -> Answer:
        """What a probe gets once."""
        probe = self.probes.get(name)
        if probe is None:
            return Answer(True, "without this probe, the kubelet takes it for a success")
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

    def request(self, timeout: float = START, asked: Request | None = None) -> int:
        """The status of a client's request; 0 where no answer came."""
        asked = asked or self.server.request
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


@contextmanager
def starting(
    name: str, server: Server, volume: Path, *, hasten: bool = False, withheld: bool = True
) -> Iterator[Running]:
    """The server, just started on a volume.

    `hasten` divides the times of liveness by progress. If the weights of its toy are `withheld`, it is not
    ready while they are awaited.
    """
    if os.geteuid():
        pytest.skip("a network namespace of its own needs root")
    probes = injected(server)
    if hasten:
        probes = {field: hastened(probe) for field, probe in probes.items()}
    if server.go:
        venv = installed(server.go, server.command[0])
    else:
        venv = built("servers", name, server.requires, str(server.newest))
    folder = volume / "served"
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
    if withheld:
        os.mkfifo(folder / "weights")
    else:
        (folder / "weights").touch()
    with pod_network(), ExitStack() as stack:

        def started(command: tuple[str, ...], log: str) -> Container:
            container = Container(name, command, volume / log, env, volume)
            stack.callback(container.remove)
            return container

        if server.prepare:
            status = started(server.prepare, "log-prepare").process.wait_until_it_ends(START)
            assert status == 0, (volume / "log-prepare").read_text()
        if server.beside:
            started(server.beside, "log-beside")
        yield Running(
            server, probes, started(server.command, "log"), folder, lambda: started(server.command, "log")
        )
