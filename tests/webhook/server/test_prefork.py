"""Several processes as one: they end together, and what ends by itself is an error."""

from __future__ import annotations

import asyncio
import sys

import pytest

SCRIPT = """
import os, signal, socket, sys
from webhook.server.prefork import supervise

turn, token = os.pipe()
os.set_blocking(turn, False)
os.write(token, b"1")

def first():
    try:
        return os.read(turn, 1) == b"1"
    except BlockingIOError:
        return False

def serve(listener):
    os.write(1, b"serving\\n")
    {body}

sys.exit(supervise(2, socket.create_server(("127.0.0.1", 0)), serve))
"""
FOREVER = "signal.pause()"


@pytest.mark.parametrize(
    "body",
    ["os._exit(0)", "os._exit(3)", "int('no number')", "os.kill(os.getpid(), signal.SIGKILL)"],
)
async def test_a_worker_that_ends_unasked_ends_the_others_with_an_error(body: str) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SCRIPT.format(body=f"first() and {body}; {FOREVER}")),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await asyncio.wait_for(child.wait(), 20) == 1


@pytest.mark.parametrize(
    "body", [FOREVER, "signal.signal(signal.SIGTERM, lambda *_: os._exit(0)); signal.pause()"]
)
async def test_asked_to_end_all_end_with_0(body: str) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRIPT.format(body=body), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    for _ in range(2):
        assert await asyncio.wait_for(child.stdout.readline(), 20) == b"serving\n"
    child.terminate()
    assert await asyncio.wait_for(child.wait(), 20) == 0
    assert await child.stdout.read() == b"", "no worker is left that could hold the pipe"
