"""`--workers N`: several serving processes behind one listening socket.

Law: they live and die together. A worker that ends unasked ends the whole, and the kubelet starts it anew:
a pod that quietly serves with fewer workers than it was given is harder to notice than a restart.

Every worker has caches of its own, so memory grows with their number; more replicas are usually the better
way to more throughput. Counters are shared through files, so that `/metrics` of any worker shows them all.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

import structlog

log = structlog.get_logger()

STOPPING = (signal.SIGTERM, signal.SIGINT)
AWAITED = (*STOPPING, signal.SIGCHLD)


def supervise(count: int, listener: socket.socket, serve: Callable[[socket.socket], int]) -> int:
    """Run `serve` in `count` processes until SIGTERM or SIGINT; the exit status.

    Must be called before any thread or event loop is started, since it forks.
    """
    # Signals are waited for, not handled: none can be lost between a look at it and the wait for the next,
    # nor be swallowed by a child that still has its parent's handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    alive = {_fork(listener, serve) for _ in range(count)}
    listener.close()
    stopping = failed = False
    while alive:
        if signal.sigwait(AWAITED) in STOPPING:
            stopping = True
            _end(alive)
        for pid, code in _ended():
            alive.discard(pid)
            if not stopping:
                log.error("worker ended, ending the others", pid=pid, status=code)
                stopping = failed = True
                _end(alive)
            failed = failed or code not in (0, -signal.SIGTERM)
    return 1 if failed else 0


def _fork(listener: socket.socket, serve: Callable[[socket.socket], int]) -> int:
    """Start a worker; its process id. The child never returns from here."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)
        status = serve(listener)
    except Exception:
        log.exception("worker failed")
    finally:
        os._exit(status)


def _end(alive: set[int]) -> None:
    for pid in alive:
        os.kill(pid, signal.SIGTERM)


def _ended() -> Iterator[tuple[int, int]]:
    """The children that have ended, each with its exit code (negative: the signal that ended it)."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            yield pid, os.waitstatus_to_exitcode(status)
