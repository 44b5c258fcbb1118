"""A parent process that restarts the puller when it crashes, so that its container does not end.

A pod is ready only while each of its sidecars runs: the kubelet removes a pod from its Services as soon as
the container of a native sidecar ends, and restarts it only after a pause of up to five minutes. Loaded
models need no puller. So the puller runs as the child of a process that only restarts it: standard library
only, a few megabytes, forked before any large import.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

CRASHED = 70
"""The exit status of a child that raised an exception (EX_SOFTWARE)."""

_PR_SET_PDEATHSIG = 1
_STOP = {signal.SIGTERM, signal.SIGINT}
_MAX_PAUSE = 30.0
_STABLE = 60.0
"""Seconds after which a child counts as stable, and the pause starts from 0 again."""


def supervise(work: Callable[[], int]) -> int:
    """Run `work` in a child until it returns, or until SIGTERM or SIGINT, which are forwarded. A child that
    is killed or crashes is restarted, first at once, then after growing pauses. Returns the exit status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP | {signal.SIGCHLD})
    pause = 0.0
    while True:
        began = time.monotonic()
        child = _child(work)
        stopping, status = _wait(child)
        if stopping and -status in _STOP:
            return 0  # it had no signal handlers yet
        if stopping or 0 <= status < CRASHED:
            return status if status >= 0 else 128 - status
        pause = 0.0 if time.monotonic() - began > _STABLE else pause
        print(
            f'{{"event": "puller died", "level": "error", "status": {status}}}', file=sys.stderr, flush=True
        )
        if pause and signal.sigtimedwait(_STOP, pause) is not None:
            return 0
        pause = min(max(pause * 2, 0.5), _MAX_PAUSE)


def _child(work: Callable[[], int]) -> int:
    """Fork; the child runs `work`, and ends with its parent."""
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    status = CRASHED
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP | {signal.SIGCHLD})
            status = work()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(child: int) -> tuple[bool, int]:
    """(whether a stop was requested, the exit status, negative for a signal). The first process of a
    container also waits for orphans of other processes."""
    stopping = False
    while True:
        number = signal.sigwaitinfo(_STOP | {signal.SIGCHLD}).si_signo
        if number in _STOP:
            stopping = True
            os.kill(child, number)
            continue
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return stopping, CRASHED
            if pid == child:
                return stopping, os.waitstatus_to_exitcode(status)
            if pid == 0:
                break
