"""A healthy server is never restarted: hours of overload and hardship under the injected livenessProbe.

Each server has a small share of a processor, so that ten times its capacity is cheap for the machine. Its
probes, the program of liveness by progress included, run on that share, as the kubelet runs them.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.servers.load import Load
from tests.servers.noticing import CLIENTS, asking, kill, roles, stopped
from tests.servers.running import Running, starting
from tests.servers.sandbox import ADDRESS, Quota
from tests.servers.server import NOTICED, OVERLOAD, own_servers, record, recorded, servers
from tests.vllm.kubelet import Kubelet

pytestmark = pytest.mark.overload

SERVERS = {**servers(), **own_servers()}
TIMES = 10
"""How many times as much is asked of a server as it can answer."""
MEASURED = 100
"""Seconds in which its capacity is measured. Liveness by progress sees it work, and counts from then on."""
MOST = 100.0
"""Requests a second: more would be the load generator's overload."""
IDLE = 500
"""Connections that send nothing."""
STOPPED, GOES = 10, 20
"""Seconds for which all processes stop, and go on: a collection of garbage, or a compilation."""
KILLED = 120
"""Seconds between two ends of a worker."""

Act = Callable[[str, Running], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def nothing(_: str, __: Running) -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def meanwhile(work: Callable[[], Coroutine[None, None, None]], times: int = 1) -> AsyncIterator[None]:
    """Do this so many times at once, until the end."""
    tasks = [asyncio.create_task(work()) for _ in range(times)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def repeated(step: Callable[[], None], pause: float) -> AbstractAsyncContextManager[None]:
    """Take this step again and again meanwhile."""

    async def again() -> None:
        while True:
            await asyncio.sleep(pause)
            await asyncio.to_thread(step)

    return meanwhile(again)


def pauses(_: str, running: Running) -> AbstractAsyncContextManager[None]:
    def pause() -> None:
        with stopped(running.container.descendants()):
            time.sleep(STOPPED)

    return repeated(pause, GOES)


def replaced(name: str) -> Sequence[str]:
    """The kinds of workers that a server replaces if they end."""
    return [
        what.removeprefix("killed: ")
        for what, row in recorded(NOTICED).get(name, {}).get("seen", {}).items()
        if what.startswith("killed: ") and row.get("live") is None and "restart" not in row
    ]


def workers_end(name: str, running: Running) -> AbstractAsyncContextManager[None]:
    """What the metrics of its workers show begins anew."""
    titles = replaced(name)

    def end() -> None:
        for title in titles:
            kill(roles(running.container).get(title, [])[:1])

    return repeated(end, KILLED)


@asynccontextmanager
async def never_read(_: str, running: Running) -> AsyncIterator[None]:
    with asking(running.server.request, CLIENTS, 200):
        yield


@asynccontextmanager
async def idle_connections(_: str, running: Running) -> AsyncIterator[None]:
    async def idle() -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection(ADDRESS, running.server.request.port)
                try:
                    await reader.read()
                finally:
                    writer.close()
            except OSError:
                pass
            await asyncio.sleep(5)

    async with meanwhile(idle, IDLE):
        yield
    await asyncio.sleep(0)  # until their connections are closed


@dataclass(frozen=True)
class Hardship:
    """What happens to a server, how much of its share of a processor it gets, and how many times its capacity
    clients ask. Calls of its toy model take a second and no processor, as on an accelerator, or no time."""

    act: Act = nothing
    part: float = 1
    times: float = 1
    slow: bool = True


HARDSHIPS: Mapping[str, Hardship] = {
    f"{TIMES} times its capacity": Hardship(times=TIMES),
    f"{TIMES} times its capacity, with calls of no time": Hardship(times=TIMES, slow=False),
    f"{TIMES} times its capacity, on half of its share": Hardship(times=TIMES, part=0.5),
    f"all processes stop for {STOPPED} of {STOPPED + GOES} s": Hardship(pauses),
    f"{CLIENTS} clients never read": Hardship(never_read),
    f"{IDLE} idle connections": Hardship(idle_connections),
    f"its workers end every {KILLED} s": Hardship(workers_end),
}
LONGEST = next(iter(HARDSHIPS))
"""This lasts for --minutes, the others for a sixth of it."""


def tried() -> Iterator[tuple[str, str]]:
    """Each server with each hardship, those first that last longest."""
    for what, hardship in HARDSHIPS.items():
        for name, server in SERVERS.items():
            possible = replaced(name) if hardship.act is workers_end else hardship.slow or server.toy
            if possible:
                yield name, what


@contextmanager
def limited(running: Running, name: str) -> Iterator[Quota]:
    """A quota for all of a server's processes and its probes."""
    quota = Quota(f"{os.getpid()}-{name}")
    running.container.limit(quota)
    try:
        yield quota
    finally:
        running.container.remove()
        quota.remove()


def kubelet_of(running: Running, log: Path) -> Kubelet:
    """Runs the livenessProbe, and writes down each answer."""

    def ask(probe: Mapping[str, Any], env: Mapping[str, str]) -> tuple[bool, str]:
        began = time.time()
        answer = running.ask("livenessProbe")
        with log.open("a") as file:
            took = time.time() - began
            print(f"{began:.0f} {took:.1f} {answer.success} {answer.detail}", file=file, flush=True)
        return answer.success, answer.detail

    return Kubelet(running.probes["livenessProbe"], running.container.env, run=ask)


async def endured(hardship: AbstractAsyncContextManager[None], load: Load, *how: Any) -> None:
    async with hardship:
        await load.steady(*how)


@pytest.mark.parametrize(
    ("name", "what"), [pytest.param(*each, id=" ".join(each).replace(" ", "-")) for each in tried()]
)
def test_a_healthy_server_is_never_restarted(
    name: str, what: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server, hardship = SERVERS[name], HARDSHIPS[what]
    seconds = request.config.getoption("--minutes") * (60 if what == LONGEST else 10)
    load, measured = Load(server.request), Load(server.request)
    with starting(name, server, tmp_path, withheld=False) as running, limited(running, name) as quota:
        if hardship.slow:
            running.fault("slow").touch()
        running.waits(lambda: running.request(30) == 200 and running.succeeds("startupProbe"))
        quota.set(server.share * hardship.part)
        with kubelet_of(running, tmp_path / "probes") as kubelet:
            asyncio.run(measured.closed(server.clients, MEASURED))
            capacity = min(MOST / hardship.times, max(measured.finished, 1) / MEASURED)

            def over() -> bool:
                return kubelet.seen.restarted_after is not None or not running.container.runs

            rate = hardship.times * capacity
            asyncio.run(endured(hardship.act(name, running), load, rate, seconds, over))
        seen, ended = kubelet.seen, not running.container.runs
    row = {
        "minutes": round(load.seconds / 60, 1),
        "capacity": round(capacity, 2),
        "sent": load.sent,
        "finished": load.finished,
        "silence": round(load.silence),
        "probes": len(seen.results),
        "failed": seen.failures,
        "inARow": seen.in_a_row,
        "threshold": running.probes["livenessProbe"]["failureThreshold"],
        "slowest": round(seen.slowest, 1),
        "restarts": int(seen.restarted_after is not None),
        "ended": ended,
    }
    print(row)
    (tmp_path / "row").write_text(str(row))
    if request.config.getoption("--record", default=False):
        told = {"server": server.version, "preset": server.preset, "on": datetime.date.today()}
        record(name, {**told, "seen": {what: row}}, OVERLOAD)
    assert not row["restarts"], seen.results[-10:]
    assert not ended, "it ended by itself"
