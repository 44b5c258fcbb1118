"""The supervisor: it starts the serving processes behind one listening socket, and ends one that hangs.

Law: no review can hang the whole. A worker that a review holds for longer than its caller waits, or whose
event loop has stopped, is ended by another process, which no lock of the interpreter can stop; the review
is named in the log first, and is not read a second time. The socket is the supervisor's: while a worker
restarts, connections wait in its backlog or go to the other workers.

Every worker has its own caches, so memory grows with their number; more replicas are usually the better
way to more throughput. Counters of several workers are shared through files, so that `/metrics` of any of
them shows them all.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from webhook.server.log import listen_to_signals
from webhook.server.record import Record, Restarts, SharedRecords, Suspects

log = structlog.get_logger()

LOOK_SECONDS: Final = 0.25
"""How often the supervisor looks at its workers."""
STALL_SECONDS: Final = 30.0
"""How long an event loop may stop outside of a review, for example to load a large policy."""
SETTLED_SECONDS: Final = 60.0
"""A worker that lived for so long is restarted at once."""
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 5.0

Serve = Callable[[socket.socket, SharedRecords], int]

LOG_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""The signals that change the level of the log (`webhook.server.log`)."""


def stopping_signals() -> tuple[signal.Signals, ...]:
    """The signals that end a server in good order. SIGHUP stays ignored under nohup."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGINT, *([] if ignored else [signal.SIGHUP]))


def processes() -> list[int]:
    """The ids of the supervisor and its workers, asked in a worker."""
    supervisor = os.getppid()
    found = [supervisor]
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            # The name in brackets may hold spaces and brackets; the state and the parent follow it.
            stat = (entry / "stat").read_text(errors="replace")
            if int(stat.rpartition(")")[2].split()[1]) == supervisor:
                found.append(int(entry.name))
    return found


def supervise(
    count: int, listener: socket.socket, serve: Serve, ended: Callable[[int], None] = lambda _: None
) -> int:
    """Run `serve` in `count` processes until SIGTERM, SIGINT or SIGHUP; the exit status.

    `ended` is given the id of each worker that has ended. Must be called before any thread or event loop is
    started, since it forks whenever a worker is restarted.
    """
    return _Supervisor(count, listener, serve, ended).run()


@dataclass
class _Worker:
    """One place among the workers, and the process that fills it."""

    record: Record = field(default_factory=Record)
    pid: int = 0
    """0 while there is none."""
    started: float = 0.0
    due: float = 0.0
    """When the next one may start, on the monotonic clock."""
    pause: float = 0.0
    step: int = 0
    beats: int = 0
    held: float = 0.0
    """Seconds, as the supervisor saw them, that the step has lasted."""
    silent: float = 0.0
    """The same for the last beat of the event loop."""
    sentence: tuple[str, int] | None = None
    """Why it was killed, and in which step."""


class _Supervisor:
    def __init__(
        self, count: int, listener: socket.socket, serve: Serve, ended: Callable[[int], None]
    ) -> None:
        self._workers = [_Worker() for _ in range(count)]
        self._listener, self._serve, self._told = listener, serve, ended
        self._suspects, self._restarts = Suspects(), Restarts()
        self._stopping, self._status = False, 0
        self._stop_signals = stopping_signals()
        self._awaited = (*self._stop_signals, *LOG_SIGNALS, signal.SIGCHLD)

    def run(self) -> int:
        # Signals are waited for, not handled: none can be lost between a look at it and the wait for the
        # next, nor be swallowed by a child that still has its parent's handler.
        signal.pthread_sigmask(signal.SIG_BLOCK, self._awaited)
        listen_to_signals()
        # Workers share the present memory until a write to it, and the garbage collector would write to it.
        gc.collect()
        gc.freeze()
        looked = time.monotonic()
        while True:
            self._start_due()
            if self._stopping and not self._alive():
                return self._status
            received = signal.sigtimedwait(self._awaited, LOOK_SECONDS)
            if received and received.si_signo in self._stop_signals:
                self._stop()
            elif received and received.si_signo in LOG_SIGNALS:
                self._pass_on(signal.Signals(received.si_signo))
            for pid, code in _ended():
                worker = next((each for each in self._workers if each.pid == pid), None)
                if worker:  # else an orphan that came to us as process 1
                    self._buried(worker, code)
            now = time.monotonic()
            # Time in which we had no turn either is nobody's fault: the whole pod may have been stopped.
            self._look(min(now - looked, 2 * LOOK_SECONDS))
            looked = now

    def _pass_on(self, number: signal.Signals) -> None:
        """To ourselves, so that workers that are forked later have the level, too, and to those there are."""
        handler = signal.getsignal(number)
        if callable(handler):
            handler(number, None)
        for worker in self._alive():
            _send(worker.pid, number)

    # --- starting --------------------------------------------------------------------------------------

    def _start_due(self) -> None:
        for worker in self._workers:
            if not (worker.pid or self._stopping) and time.monotonic() >= worker.due:
                self._start(worker)

    def _start(self, worker: _Worker) -> None:
        worker.record.clear()
        worker.step = worker.beats = 0
        worker.held = worker.silent = 0.0
        worker.sentence = None
        worker.started = time.monotonic()
        try:
            worker.pid = self._fork(worker.record)
        except OSError as error:
            log.error("no worker started", error=str(error))  # noqa: TRY400
            worker.due = worker.started + LONGEST_PAUSE

    def _fork(self, record: Record) -> int:
        """Start a worker; its process id. The child never returns from here."""
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._awaited)
            others = tuple(worker.record for worker in self._workers if worker.record is not record)
            status = self._serve(
                self._listener, SharedRecords(record, self._suspects, self._restarts, others)
            )
        except KeyboardInterrupt:  # from the terminal, before the worker could listen for it
            status = 0
        except Exception:
            log.exception("worker failed")
        finally:
            os._exit(status)

    # --- watching --------------------------------------------------------------------------------------

    def _look(self, passed: float) -> None:
        for worker in self._workers:
            if not worker.pid or worker.sentence:
                continue
            step, beats = worker.record.step, worker.record.beats
            worker.held = worker.held + passed if step and step == worker.step else 0.0
            worker.silent = worker.silent + passed if beats == worker.beats else 0.0
            worker.step, worker.beats = step, beats
            if step and worker.held > worker.record.limit:
                log.error(
                    "a review hangs, ending its worker",
                    pid=worker.pid,
                    seconds=worker.held,
                    **_review(worker),
                )
                self._kill(worker, "hung")
            elif worker.silent > STALL_SECONDS:
                log.error("a worker's event loop has stopped, ending it", pid=worker.pid)
                self._kill(worker, "stalled")

    def _kill(self, worker: _Worker, reason: str) -> None:
        worker.sentence = reason, worker.step
        _send(worker.pid, signal.SIGKILL)

    def _buried(self, worker: _Worker, code: int) -> None:
        pid, worker.pid = worker.pid, 0
        self._told(pid)
        if self._stopping:
            if code not in (0, -signal.SIGTERM):
                self._status = self._status or 1
            return
        if not (worker.record.serving or worker.sentence or any(w.record.serving for w in self._alive())):
            # What keeps it from serving keeps the next from it, too: for the kubelet and a person to see.
            log.error("worker ended before it served, ending", pid=pid, status=code)
            self._status = max(code, 1)
            self._stop()
            return
        reason, step = worker.sentence or ("died", worker.record.step)
        if step and step == worker.record.step:
            # If the worker had already finished that review when it was killed, the review is no suspect.
            self._suspects.add(worker.record.identity)
            log.error(
                "a review ended its worker, it is not read again",
                pid=pid,
                status=code,
                **_review(worker),
            )
        self._restarts.add(reason)
        now = time.monotonic()
        if now - worker.started > SETTLED_SECONDS:
            worker.pause = 0.0
        worker.due = now + worker.pause
        log.error("worker ended, starting another", pid=pid, status=code, reason=reason, pause=worker.pause)
        worker.pause = min(max(worker.pause * 2, FIRST_PAUSE), LONGEST_PAUSE)

    # --- stopping --------------------------------------------------------------------------------------

    def _alive(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.pid]

    def _stop(self) -> None:
        if not self._stopping:
            # The workers have it open as long as they take connections; held here, it would go on to.
            self._listener.close()
        self._stopping = True
        for worker in self._alive():
            _send(worker.pid, signal.SIGTERM)


def _review(worker: _Worker) -> dict[str, object]:
    return {"review": worker.record.identity.hex(), **worker.record.about}


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _ended() -> Iterator[tuple[int, int]]:
    """The children that have ended, each with its exit code (negative: the signal that ended it)."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            yield pid, os.waitstatus_to_exitcode(status)
