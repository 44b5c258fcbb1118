"""The supervisor over real processes: it starts what ends, ends what hangs, and goes when it is sent away."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from policies.kube.json import Json
from tests import forked
from tests.forked import Forked
from webhook.server import supervisor as module
from webhook.server.shared_memory import Identity

SCRIPT = """
{before}
import os, signal, socket, sys, time
from webhook.server import log, supervisor
log.configure("info", "json")
supervisor.CHECK_SECONDS, supervisor.STALL_SECONDS = 0.02, {stall}

def served(shared):
    shared.state.serving = 1
    os.write(1, b"%d\\n" % os.getpid())

def first(name):
    # Whether no process before has asked.
    try:
        os.close(os.open(os.path.join(sys.argv[1], name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True

def forever(shared):
    while True:
        shared.state.turns += 1
        time.sleep(0.02)

def serve(listener, shared):
    {body}
    forever(shared)

gone = []

def ended(pid):
    # From here on, a loop that stops is that of a slow machine.
    supervisor.STALL_SECONDS = 60
    gone.append(pid)

sys.exit(supervisor.supervise({workers}, socket.create_server(("127.0.0.1", 0)), serve, ended))
"""


class Supervised:
    """A supervisor, the workers that report that they serve, and its log."""

    def __init__(self, child: Forked) -> None:
        self.child = child
        self.log: list[Json] = []

    async def worker(self) -> int:
        """The process id of the next worker that serves."""
        line = await asyncio.wait_for(self.child.stdout.readline(), 60)
        assert line, "no worker is left"
        return int(line)

    async def ended(self) -> int:
        """The exit status, and the log read to its end."""
        async with asyncio.timeout(60):
            self.log = [json.loads(line) for line in (await self.child.stderr.read()).splitlines()]
            return await self.child.wait()

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.child.send_signal(number)
        return await self.ended()

    def events(self) -> list[str]:
        return [line["event"] for line in self.log]


class Start(Protocol):
    """Runs `body` in each worker; `before` in the supervisor, first of all."""

    def __call__(
        self, body: str, workers: int = 2, stall: float = 20, before: str = ""
    ) -> AbstractAsyncContextManager[Supervised]: ...


@pytest.fixture
def supervised(tmp_path: Path) -> Start:
    @asynccontextmanager
    async def start(
        body: str, workers: int = 2, stall: float = 20, before: str = ""
    ) -> AsyncIterator[Supervised]:
        text = SCRIPT.format(body=body.replace("\n", "\n    "), workers=workers, stall=stall, before=before)
        async with forked.started(text, [str(tmp_path)]) as child:
            try:
                yield Supervised(child)
            finally:
                child.kill()
                await child.wait()

    return start


HANG = "while True: pass"
REVIEW = b'{"request": {"uid": "1"}}'


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("end", ["os._exit(0)", "os._exit(3)", "int('x')", "os.kill(os.getpid(), 9)"])
async def test_a_worker_that_ends_unasked_is_replaced(supervised: Start, end: str, workers: int) -> None:
    async with supervised(f"served(shared)\nif first('a'): {end}", workers) as it:
        pids = {await it.worker() for _ in range(workers + 1)}
        assert len(pids) == workers + 1
        assert await it.stop() == 0
    assert it.events().count("worker ended, starting another") == 1
    assert "a review ended its worker, it is not read again" not in it.events()


async def test_a_worker_that_never_served_ends_the_whole_with_its_status(supervised: Start) -> None:
    async with supervised("os._exit(2)") as it:
        assert await it.ended() == 2


async def test_a_worker_that_can_t_start_is_tried_again_while_another_serves(
    supervised: Start,
) -> None:
    body = "if not first('a') and first('b'): os._exit(2)\nserved(shared)"
    async with supervised(body) as it:
        assert await it.worker() != await it.worker()
        assert await it.stop() == 0
    assert it.events().count("worker ended, starting another") <= 1


HUNG = f"""
served(shared)
from webhook.server.shared_memory import Identity
review = Identity.of_body({REVIEW!r})
if not shared.suspects.holds(review):
    shared.state.begin(review, b'{{"kind": "v1/Pod", "namespace": "ml"}}', 0.05)
    {HANG}
"""


async def test_a_worker_that_a_review_holds_is_replaced_and_the_next_one_knows(supervised: Start) -> None:
    async with supervised(HUNG, 1) as it:
        hung, after = await it.worker(), await it.worker()
        assert hung != after
        assert await it.stop() == 0
    assert it.events() == [
        "a review hangs, ending its worker",
        "a review ended its worker, it is not read again",
        "worker ended, starting another",
    ]
    for line in it.log[:2]:
        assert (line["kind"], line["namespace"], line["pid"], len(line["review"])) == (
            "v1/Pod",
            "ml",
            hung,
            32,
        )
    assert (it.log[2]["reason"], it.log[2]["status"]) == ("hung", -9)


async def test_a_worker_that_dies_in_a_review_teaches_the_next_one(supervised: Start) -> None:
    body = HUNG.replace(HANG, "os.kill(os.getpid(), signal.SIGSEGV)").replace("0.05", "60")
    async with supervised(body, 1) as it:
        assert await it.worker() != await it.worker()
        assert await it.stop() == 0
    assert it.events() == [
        "a review ended its worker, it is not read again",
        "worker ended, starting another",
    ]
    assert (it.log[1]["reason"], it.log[1]["status"]) == ("died", -signal.SIGSEGV)


async def test_a_stuck_loop_is_ended_and_no_review_is_blamed(supervised: Start) -> None:
    body = f"if not gone:\n    shared.state.serving = 1\n    {HANG}\nserved(shared)"
    async with supervised(body, 1, stall=0.2) as it:
        after = await it.worker()
        assert await it.stop() == 0
    assert it.events() == [
        "a worker's event loop has stopped, ending it",
        "worker ended, starting another",
    ]
    assert it.log[0]["pid"] == it.log[1]["pid"] != after
    assert it.log[1]["reason"] == "stalled"


def test_steps_that_each_end_in_time_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the limit in all, in many steps: the supervisor looks at one step at a time."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(module, "_send", lambda pid, number: sent.append((pid, number)))
    with socket.socket() as listener:
        supervisor = module._Supervisor(1, listener, lambda _, __: 0, lambda _: None)
    worker = supervisor._workers[0]
    worker.pid, review = 12345, Identity.of_body(REVIEW)
    for _ in range(40):
        worker.state.begin(review, b"{}", 0.5)
        for _ in range(2):  # a step is known from the first look at it on
            supervisor._check(0.025)
        worker.state.end()
    assert sent == []
    worker.state.begin(review, b"{}", 0.5)
    for _ in range(22):
        supervisor._check(0.025)
    assert sent == [(12345, signal.SIGKILL)], "one step that takes longer than the limit"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("handled", [True, False])
async def test_on_sigterm_all_end_with_0_and_no_process_is_left(
    supervised: Start, number: signal.Signals, handled: bool
) -> None:
    handler = "signal.signal(signal.SIGTERM, lambda *_: os._exit(0))\n" if handled else ""
    async with supervised(handler + "served(shared)") as it:
        for _ in range(2):
            await it.worker()
        assert await it.stop(number) == 0
        assert it.child.stdout is not None
        assert await it.child.stdout.read() == b"", "no worker is left that could hold the pipe"
    assert it.events() == []


async def test_a_worker_that_hangs_while_it_drains_is_ended_and_makes_an_error(supervised: Start) -> None:
    hang = HUNG.replace("served(shared)", "").replace("\n", "\n    ")
    body = f"def drain(*_):\n    {hang}\nsignal.signal(signal.SIGTERM, drain)\nserved(shared)"
    async with supervised(body, 1) as it:
        await it.worker()
        assert await it.stop() == 1
    assert it.events() == ["a review hangs, ending its worker"]


async def test_nohup_keeps_it_alive(supervised: Start) -> None:
    ignored = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    async with supervised("served(shared)", 1, before=ignored) as it:
        pid = await it.worker()
        it.child.send_signal(signal.SIGHUP)
        os.kill(pid, signal.SIGHUP)
        assert await it.stop() == 0
    assert it.events() == []


ORPHAN = """
if first('a') and os.fork() == 0:
    os.fork() and os._exit(0)
    os.write(1, b"%d\\n" % os.getpid())
    os._exit(5)
"""


async def test_it_buries_orphans_as_process_1_must(supervised: Start) -> None:
    """A subreaper takes in the orphans below it, as process 1 does for its container."""
    async with supervised(ORPHAN, 1, before="import ctypes; ctypes.CDLL(None).prctl(36, 1)") as it:
        orphan = await it.worker()
        async with asyncio.timeout(60):
            while os.path.exists(f"/proc/{orphan}"):  # noqa: ASYNC110, ASYNC240, PTH110
                await asyncio.sleep(0.01)
        assert await it.stop() == 0
    assert it.events() == []
