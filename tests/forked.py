"""Python programs forked from a process that has imported the server: each starts in 0.1 CPU seconds, not 1.

`started` is to a test what `asyncio.create_subprocess_exec(sys.executable, "-c", text, *argv)` is. Nothing of
pytest's own process is in the program: that of the imports is a fresh interpreter.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module

MAX_BYTES = 1 << 20
"""Of a program, its arguments and its environment."""


@dataclass
class Forked:
    """A program that runs, with as much of `asyncio.subprocess.Process` as the tests use."""

    pid: int
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader
    _status: asyncio.StreamReader
    returncode: int | None = None
    """None until `wait` has returned."""

    async def wait(self) -> int:
        """The exit status; that of a signal is negative."""
        if self.returncode is None:
            self.returncode = int(await self._status.readline())
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the program has ended."""
        with suppress(ProcessLookupError):
            if self.returncode is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End the program at once."""
        self.send_signal(signal.SIGKILL)


@asynccontextmanager
async def started(
    text: str, argv: Sequence[str], env: Mapping[str, str] | None = None
) -> AsyncIterator[Forked]:
    """Run the text of a program. It is the caller's to end it."""
    pipes = [os.pipe() for _ in range(3)]
    order = json.dumps([text, argv, dict(os.environ if env is None else env)]).encode()
    socket.send_fds(_server(), [order], [theirs for _, theirs in pipes])
    for _, theirs in pipes:
        os.close(theirs)
    loop = asyncio.get_running_loop()
    transports: list[asyncio.ReadTransport] = []
    readers: list[asyncio.StreamReader] = []
    for ours, _ in pipes:
        readers.append(asyncio.StreamReader())
        protocol = partial(asyncio.StreamReaderProtocol, readers[-1])
        transport, _ = await loop.connect_read_pipe(protocol, os.fdopen(ours, "rb", 0))
        transports.append(transport)
    stdout, stderr, status = readers
    try:
        yield Forked(int(await status.readline()), stdout, stderr, status)
    finally:
        for transport in transports:
            transport.close()
        await asyncio.sleep(0)  # they are closed now


@cache
def _server() -> socket.socket:
    """The connection to the process with the imports, which ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_BYTES)
    with theirs:
        process = subprocess.Popen([sys.executable, "-m", "tests.forked"], stdin=theirs.fileno())

    def stop() -> None:
        ours.close()
        process.wait()

    atexit.register(stop)
    return ours


def _serve(orders: socket.socket) -> None:
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        order, descriptors, _, _ = socket.recv_fds(orders, MAX_BYTES, 3)
        if not order:
            return
        if not os.fork():
            orders.close()
            text, argv, env = json.loads(order)
            _keep(text, argv, env, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(text: str, argv: list[str], env: dict[str, str], descriptors: list[int]) -> None:
    """Run the program in a child, and write its process id and its exit status."""
    *output, status = descriptors
    pid = os.fork()
    if not pid:
        os.close(status)
        _run(text, argv, env, output)
    for descriptor in output:
        os.close(descriptor)
    os.write(status, b"%d\n" % pid)
    os.write(status, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _run(text: str, argv: list[str], env: dict[str, str], output: list[int]) -> None:
    code = 1
    try:
        for standard, descriptor in enumerate(output, start=1):
            os.dup2(descriptor, standard)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(env)
        sys.argv = ["-c", *argv]
        exec(text, {"__name__": "__main__"})
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _import() -> None:
    """All of a server but prometheus_client: its import decides where it keeps its counters."""
    for module in (
        "aiohttp.web",
        "uvloop",
        "webhook.cli.main",
        "webhook.kube.caches",
        "webhook.observed.collector",
        "webhook.observed.model_events",
        "webhook.server.ca_bundle",
        "webhook.server.tls_reload",
        "webhook.server.main",
        "webhook.server.supervisor",
    ):
        import_module(module)
    with suppress(ModuleNotFoundError):
        import_module("webhook.fast_path")
    from policies.core.registry import mutators
    from webhook.config.load import rules

    rules()
    mutators()
    assert "prometheus_client" not in sys.modules


if __name__ == "__main__":
    _import()
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=os.dup(0)) as orders:
        _serve(orders)
