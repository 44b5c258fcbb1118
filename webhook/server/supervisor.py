"""The supervisor: it forks the workers behind one listening socket, and kills a worker that hangs.

Law: no review blocks the service. If a review blocks its worker for longer than its caller waits, or the
worker's event loop stops, the supervisor logs the review and kills the worker. The review is not parsed
again. The supervisor owns the socket: while a worker restarts, connections wait in the backlog or go to other
workers.

Every worker has its own caches, so memory grows with their number; for throughput, more replicas are usually
better. Workers share their counters through files, so `/metrics` of each shows the sum.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog
from msgspec import Struct, field

from webhook.server.log import handle_level_signals
from webhook.server.shared_memory import (
    SharedRecords,
    Suspects,
    WorkerRestarts,
    WorkerState,
    in_shared_memory,
)

log = structlog.get_logger()

CHECK_SECONDS: Final = 0.25
"""The interval at which the supervisor checks its workers."""
STALL_SECONDS: Final = 30.0
"""How long an event loop may block outside of a review, for example to load a large policy."""
SETTLED_SECONDS: Final = 60.0
"""A worker that lived this long is restarted without a pause."""
FIRST_PAUSE: Final = 0.5
MAX_PAUSE: Final = 5.0

Serve = Callable[[socket.socket, SharedRecords], int]

LOG_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""The signals that change the level of the log (`webhook.server.log`)."""


def stopping_signals() -> tuple[signal.Signals, ...]:
    """The signals that stop the server gracefully. Under nohup, SIGHUP stays ignored."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGINT, *([] if ignored else [signal.SIGHUP]))


def processes() -> list[int]:
    """The process ids of the supervisor and its workers. Call it in a worker."""
    supervisor = os.getppid()
    found = [supervisor]
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            # State and parent follow the name, which is in brackets and may contain spaces and brackets.
            stat = (entry / "stat").read_text(errors="replace")
            if int(stat.rpartition(")")[2].split()[1]) == supervisor:
                found.append(int(entry.name))
    return found


def supervise(
    count: int, listener: socket.socket, serve: Serve, on_exit: Callable[[int], None] = lambda _: None
) -> int:
    """Run `serve` in `count` processes until SIGTERM, SIGINT or SIGHUP; the exit status.

    `on_exit` gets the process id of each worker that exits. Call this before any thread or event loop starts:
    it forks whenever a worker is restarted.
    """
    return _Supervisor(count, listener, serve, on_exit).run()


class _Worker(Struct):
    """A slot for a worker, and the process in it."""

    state: WorkerState = field(default_factory=lambda: in_shared_memory(WorkerState))
    pid: int = 0
    """0 while there is no process."""
    started: float = 0.0
    start_at: float = 0.0
    """When the next process may start, on the monotonic clock."""
    pause: float = 0.0
    step: int = 0
    turns: int = 0
    step_seconds: float = 0.0
    """How long the supervisor has seen the same step."""
    stall_seconds: float = 0.0
    """How long the event loop has made no turn."""
    killed: tuple[str, int] | None = None
    """The reason for which it was killed, and the step."""


class _Supervisor:
    def __init__(
        self, count: int, listener: socket.socket, serve: Serve, on_exit: Callable[[int], None]
    ) -> None:
        self._workers = [_Worker() for _ in range(count)]
        self._listener, self._serve, self._on_exit = listener, serve, on_exit
        self._suspects, self._restarts = Suspects(), in_shared_memory(WorkerRestarts)
        self._stopping, self._status = False, 0
        self._stop_signals = stopping_signals()
        self._awaited = (*self._stop_signals, *LOG_SIGNALS, signal.SIGCHLD)

    def run(self) -> int:
        # Signals are awaited instead of handled: none is lost between a check and the next wait, or handled
        # by a child that still has its parent's handler.
        signal.pthread_sigmask(signal.SIG_BLOCK, self._awaited)
        handle_level_signals()
        # Workers share this memory until somebody writes to it, and the garbage collector would write to it.
        gc.collect()
        gc.freeze()
        checked = time.monotonic()
        while True:
            for worker in self._workers:
                if not (worker.pid or self._stopping) and time.monotonic() >= worker.start_at:
                    self._start(worker)
            if self._stopping and not self._alive():
                return self._status
            received = signal.sigtimedwait(self._awaited, CHECK_SECONDS)
            if received and received.si_signo in self._stop_signals:
                self._stop()
            elif received and received.si_signo in LOG_SIGNALS:
                self._change_level(signal.Signals(received.si_signo))
            for pid, code in _reaped():
                exited = next((each for each in self._workers if each.pid == pid), None)
                if exited:  # else an orphan: process 1 of a container adopts them
                    self._exited(exited, code)
            now = time.monotonic()
            # A longer pause is not the workers' fault: the whole pod may have been stopped.
            self._check(min(now - checked, 2 * CHECK_SECONDS))
            checked = now

    def _change_level(self, number: signal.Signals) -> None:
        """Change the log level here, which later workers inherit, and in the present workers."""
        handler = signal.getsignal(number)
        if callable(handler):
            handler(number, None)
        for worker in self._alive():
            _send(worker.pid, number)

    # --- starting --------------------------------------------------------------------------------------

    def _start(self, worker: _Worker) -> None:
        worker.state.clear()
        worker.step = worker.turns = 0
        worker.step_seconds = worker.stall_seconds = 0.0
        worker.killed = None
        worker.started = time.monotonic()
        try:
            worker.pid = self._fork(worker.state)
        except OSError as error:
            log.error("no worker started", error=str(error))  # noqa: TRY400
            worker.start_at = worker.started + MAX_PAUSE

    def _fork(self, state: WorkerState) -> int:
        """Start a worker; its process id. The child never returns from here."""
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._awaited)
            others = tuple(worker.state for worker in self._workers if worker.state is not state)
            status = self._serve(self._listener, SharedRecords(state, self._suspects, self._restarts, others))
        except KeyboardInterrupt:  # from the terminal, before the worker installs its handler
            status = 0
        except Exception:
            log.exception("worker failed")
        finally:
            os._exit(status)

    # --- watching --------------------------------------------------------------------------------------

    def _check(self, passed: float) -> None:
        for worker in self._workers:
            if not worker.pid or worker.killed:
                continue
            state, step, turns = worker.state, worker.state.step, worker.state.turns
            worker.step_seconds = worker.step_seconds + passed if step and step == worker.step else 0.0
            worker.stall_seconds = worker.stall_seconds + passed if turns == worker.turns else 0.0
            worker.step, worker.turns = step, turns
            if step and worker.step_seconds > state.limit:
                seconds = worker.step_seconds
                log.error(
                    "a review hangs, ending its worker", pid=worker.pid, seconds=seconds, **_review(state)
                )
                self._kill(worker, "hung")
            elif worker.stall_seconds > STALL_SECONDS:
                log.error("a worker's event loop has stopped, ending it", pid=worker.pid)
                self._kill(worker, "stalled")

    def _kill(self, worker: _Worker, reason: str) -> None:
        worker.killed = reason, worker.step
        _send(worker.pid, signal.SIGKILL)

    def _exited(self, worker: _Worker, code: int) -> None:
        pid, state, worker.pid = worker.pid, worker.state, 0
        self._on_exit(pid)
        if self._stopping:
            if code not in (0, -signal.SIGTERM):
                self._status = self._status or 1
            return
        if not (state.serving or worker.killed or any(each.state.serving for each in self._alive())):
            # The next worker would fail in the same way: exit, so that the kubelet reports it.
            log.error("worker ended before it served, ending", pid=pid, status=code)
            self._status = max(code, 1)
            self._stop()
            return
        reason, step = worker.killed or ("died", state.step)
        if step and step == state.step:  # else the worker had finished the review before it was killed
            self._suspects.add(state.identity)
            log.error(
                "a review ended its worker, it is not read again", pid=pid, status=code, **_review(state)
            )
        self._restarts.add(reason)
        now = time.monotonic()
        if now - worker.started > SETTLED_SECONDS:
            worker.pause = 0.0
        worker.start_at = now + worker.pause
        log.error("worker ended, starting another", pid=pid, status=code, reason=reason, pause=worker.pause)
        worker.pause = min(max(worker.pause * 2, FIRST_PAUSE), MAX_PAUSE)

    # --- stopping --------------------------------------------------------------------------------------

    def _alive(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.pid]

    def _stop(self) -> None:
        if not self._stopping:
            # Each worker closes its own copy when it stops to accept.
            self._listener.close()
        self._stopping = True
        for worker in self._alive():
            _send(worker.pid, signal.SIGTERM)


def _review(state: WorkerState) -> dict[str, object]:
    return {"review": state.identity.decode(), **state.description}


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _reaped() -> Iterator[tuple[int, int]]:
    """The process ids and exit codes of children that have exited; a negative code is a signal."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            yield pid, os.waitstatus_to_exitcode(status)
