"""Every hostile class over HTTPS: answered, within bounds of work and memory, and the process stays there.

Work is the CPU time of the server's processes, which other load on the machine does not lengthen. `make test`
counts the calls that the same objects take, in tests/webhook/admission/test_bounds.py, and the steps of the
same commands, in tests/policies/commands/test_budget.py.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
import pytest

from policies.kube.group_kinds import kind_of
from tests.hostile.objects import HOSTILE, Json, Made, pod, server
from tests.policies.commands.hostile import HOSTILE as COMMANDS
from tests.policies.commands.hostile import Asked

pytestmark = pytest.mark.e2e

MAX_SECONDS: Final = 0.5
"""CPU seconds of one review."""
MAX_MEMORY: Final = 300 << 20
"""Bytes that the process may ever have taken."""
ATTEMPTS: Final = 3
"""The cheapest of these counts: a processor that is shared makes work dearer, never cheaper."""
COMMAND_BYTES: Final = 100_000
POLICY: Final = "pools:\n" + "".join(
    f"  - {{name: p{n}, labels: {{pool: p{n}}}, accelerators: {{nvidia.com/gpu: 8}}, product: P-{n}}}\n"
    for n in range(8)
)


def of_command(make: Callable[[int], Asked]) -> Callable[[int], Made]:
    """A container that runs a command, and whose probe runs it too."""

    def made(size: int) -> Made:
        argv, env = make(size)
        return pod(server(command=argv, env=env, livenessProbe={"exec": {"command": argv}}))

    return made


CLASSES: Final[dict[str, tuple[Callable[[int], Made], int]]] = {
    **HOSTILE,
    **{f"command: {name}": (of_command(make), COMMAND_BYTES) for name, make in COMMANDS.items()},
}


def review(made: Made) -> bytes:
    old, new = made if isinstance(made, tuple) else (None, made)
    kind = kind_of(new)
    request: Json = {
        "uid": "u",
        "kind": {"group": kind.group, "version": "v1", "kind": kind.kind},
        "operation": "UPDATE" if old else "CREATE",
        "namespace": "ml",
        "userInfo": {"username": "ada"},
        "object": new,
        "oldObject": old,
    }
    return orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


class Chassis:
    """A new `chassis serve`, asked over one connection for reviews and one for its health."""

    def __init__(self, child: asyncio.subprocess.Process, port: int, session: aiohttp.ClientSession) -> None:
        self._child, self.port, self._session = child, port, session
        self._url = f"https://127.0.0.1:{port}"

    async def post(self, endpoint: str, body: bytes) -> Json:
        headers = {"Content-Type": "application/json"}
        async with self._session.post(
            f"{self._url}/{endpoint}?timeout=30s", data=io.BytesIO(body), headers=headers
        ) as answer:
            assert answer.status == 200, await answer.text()
            read: Json = await answer.json()
            return read

    async def healthy(self) -> None:
        async with self._session.get(f"{self._url}/healthz") as answer:
            assert answer.status == 200

    async def metrics(self) -> bytes:
        async with self._session.get(f"{self._url}/metrics") as answer:
            return await answer.read()

    def seconds(self) -> float:
        """CPU seconds of all its processes until now."""
        ticks = os.sysconf("SC_CLK_TCK")
        return sum(sum(map(int, _stat(pid)[11:13])) for pid in self._processes()) / ticks

    def memory(self) -> int:
        """The most bytes that any of its processes has ever taken."""
        return max(_peak(pid) for pid in self._processes())

    def _processes(self) -> list[int]:
        parents = {int(entry.name): _parent(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")}
        found = [self._child.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found


def _stat(pid: int) -> list[str]:
    """The fields after the program's name, from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _parent(pid: int) -> int:
    try:
        return int(_stat(pid)[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)


@asynccontextmanager
async def chassis(policy: Path) -> AsyncIterator[Chassis]:
    (policy / "gpu-affinity.yaml").write_text(POLICY)
    child = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "webhook.cli",
            "serve",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--self-signed",
        ),
        *("--policy", str(policy), "--log-format", "json", "--drain-grace", "0"),
        stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if not name.startswith("CHASSIS_")},
    )
    assert child.stderr is not None
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    log: list[str] = []
    try:
        port = 0
        async for raw in child.stderr:
            log.append(raw.decode())
            if '"listening"' in log[-1]:
                port = json.loads(raw)["port"]
                break
        assert port, log
        draining = asyncio.create_task(child.stderr.read())  # a full pipe would hold it up
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session:
            yield Chassis(child, port, session)
        child.terminate()
        async with asyncio.timeout(60):
            assert await child.wait() == 0
        await draining
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def cost(it: Chassis, endpoint: str, made: Made) -> float:
    """CPU seconds of a review that is answered, and its health at the same time."""
    body = review(made)
    before = it.seconds()
    answer, _ = await asyncio.gather(it.post(endpoint, body), it.healthy())
    spent = it.seconds() - before
    response: Any = answer["response"]
    assert response["uid"] == "u"
    assert sum(map(len, response.get("warnings", ()))) <= 4096
    assert len(response.get("patch", "")) < 1 << 20
    return spent


def sizes(size: int) -> Iterator[int]:
    """The size of a class and sizes near it, so that the memo of the previous attempt is no help."""
    yield from range(size, size - ATTEMPTS, -1) if size > ATTEMPTS else [size] * ATTEMPTS


async def test_no_object_costs_more_than_its_share(tmp_path: Path) -> None:
    dear: dict[str, list[float]] = {}
    async with chassis(tmp_path) as it:
        await cost(it, "mutate", pod())
        await cost(it, "validate", pod())
        for name, (make, size) in CLASSES.items():
            for endpoint in ("mutate", "validate"):
                spent: list[float] = []
                for attempt in sizes(size):
                    spent.append(await cost(it, endpoint, make(attempt)))
                    if spent[-1] <= MAX_SECONDS:
                        break
                if min(spent) > MAX_SECONDS:
                    dear[f"{name} ({endpoint})"] = spent
        memory = it.memory()
    assert dear == {}
    assert memory < MAX_MEMORY
