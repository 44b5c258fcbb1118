"""A puller that dies is started again within its container, and stays ready if it was."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from puller.__main__ import _supervised
from puller.store import ModelStore
from tests.e2e.puller.sidecar import Sidecar
from tests.puller.conftest import World
from tests.puller.fakes import FaultStore, until

PROGRAM = """
import os, signal, sys, time
from puller.supervise import supervise

def work():
    print("begun", os.getpid(), flush=True)
    line = sys.stdin.readline().strip()
    if line == "raise":
        raise RuntimeError("a bug")
    if line.startswith("kill"):
        os.kill(os.getpid(), int(line.split()[1]))
    if line.startswith("orphan"):
        if os.fork() == 0:
            if os.fork() == 0:
                os._exit(0)
            os._exit(0)
        return 5
    if line == "wait":
        signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
        print("waiting", flush=True)
        signal.pause()
    return int(line)

sys.exit(supervise(work))
"""


class Program:
    """Each line that is written to it decides how one life ends."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def begun(self) -> int:
        """The id of the process of the next life."""
        assert self.process.stdout is not None
        word, pid = self.process.stdout.readline().split()
        assert word == "begun"
        return int(pid)

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()


@pytest.fixture
def program() -> Iterator[Program]:
    made = Program()
    yield made
    made.process.kill()
    made.process.communicate()


@pytest.mark.parametrize("status", [0, 1, 2])
def test_a_regular_exit_is_not_restarted(program: Program, status: int) -> None:
    program.begun()
    program.say(str(status))
    assert program.process.wait(20) == status


@pytest.mark.parametrize("end", ["raise", f"kill {int(signal.SIGKILL)}", f"kill {int(signal.SIGSEGV)}"])
def test_a_crash_is_restarted(program: Program, end: str) -> None:
    first = program.begun()
    program.say(end)
    assert program.begun() != first
    program.say("0")
    assert program.process.wait(20) == 0
    assert program.process.stderr is not None
    assert '"event": "puller died"' in program.process.stderr.read()


def test_sigterm_is_forwarded(program: Program) -> None:
    program.begun()
    program.say("wait")
    assert program.process.stdout is not None
    assert program.process.stdout.readline() == "waiting\n"
    program.process.terminate()
    assert program.process.wait(20) == 7


def test_sigterm_ends_a_pause(program: Program) -> None:
    for _ in range(2):  # the second death is followed by a pause
        program.begun()
        program.say("raise")
    assert program.process.stderr is not None
    died = 0
    while died < 2:
        died += "puller died" in program.process.stderr.readline()
    program.process.terminate()
    assert program.process.wait(20) in (0, 143)


def test_the_child_does_not_outlive_its_parent(program: Program) -> None:
    child = program.begun()
    program.process.kill()
    program.process.wait(20)
    ended = subprocess.run(["timeout", "20", "tail", f"--pid={child}", "-f", "/dev/null"], check=False)
    assert ended.returncode == 0


async def test_a_restarted_puller_stays_ready(tmp_path: Path) -> None:
    """Killed, it comes back within the same process tree, and is ready though a listed model is missing."""
    store = FaultStore()
    await store.start()
    store.objects["m/model.bin"] = b"weights"
    sidecar = Sidecar(
        tmp_path, store.env, server="none", ready_when="first", supervise="true", pod_uid="uid-1"
    )
    sidecar.config.write({"m": "s3://bucket/m"})
    try:
        sidecar.start()
        await until(lambda: (tmp_path / "models" / ".puller" / "ready").exists())
        sidecar.config.write({"m": "s3://bucket/m", "missing": "s3://bucket/missing"})
        status = tmp_path / "models" / ".status.json"
        await until(lambda: b'"missing"' in status.read_bytes())
        assert sidecar.process is not None
        children = Path(f"/proc/{sidecar.process.pid}/task/{sidecar.process.pid}/children")
        first = int(await asyncio.to_thread(children.read_text))
        os.kill(first, signal.SIGKILL)
        await until(lambda: children.read_text().strip() not in ("", str(first)))
        await asyncio.to_thread(status.write_bytes, b"")
        await until(lambda: b'"NotFound"' in status.read_bytes())
        assert b'"ready":true' in status.read_bytes()
        assert sidecar.stop() == 0
    finally:
        sidecar.kill()
        await store.stop()


async def test_readiness_is_kept_only_for_the_same_pod(world: World) -> None:
    """A claim may outlive the pod: another one has a model server that has loaded nothing."""
    world.set(ready_when="first", pod_uid="one")
    world.config.write({"m": world.put("m", "M")})
    world.start()
    await until(lambda: (world.model_dir / ".puller" / "ready").exists())
    await world.stop()
    world.config.write({"m": "s3://bucket/m", "n": "s3://bucket/nothing"})
    for uid, ready in (("one", True), ("two", False), ("", False), ("one", True)):
        world.set(pod_uid=uid)
        world.start()
        await until(lambda: world.entry("n").get("reason") == "NotFound")
        assert world.ready() is ready
        await world.stop()


def test_an_unreadable_note_is_ignored(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    assert not store.was_ready("one")
    (tmp_path / ".puller").mkdir()
    store.record_ready("one")
    assert store.was_ready("one")
    assert not store.was_ready("")
    (tmp_path / ".puller" / "ready").unlink()
    (tmp_path / ".puller" / "ready").mkdir()
    assert not store.was_ready("one")


@pytest.mark.parametrize(
    ("arguments", "variable", "expected"),
    [
        ([], None, False),
        ([], "true", True),
        (["--supervise=true"], None, True),
        (["--port", "1", "--supervise", "true"], None, True),
        (["--supervise=false"], "true", False),
        (["--supervise"], "true", False),
        (["--supervise=true", "--supervise=false"], None, False),
    ],
)
def test_the_flag_wins_over_the_variable(arguments: list[str], variable: str | None, expected: bool) -> None:
    env = {} if variable is None else {"CHASSIS_PULLER_SUPERVISE": variable}
    assert _supervised(arguments, env) is expected
