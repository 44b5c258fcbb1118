"""A parent that begins the puller again when it dies, so that its container does not end.

A pod is ready only while each of its sidecars runs: the kubelet takes a pod out of its Services the moment a
native sidecar's container ends, with or without probes, and starts it again only after a pause that grows to
five minutes. The models that the server has loaded need no puller. So the puller is the child of a process
that only restarts it: standard library only, a few megabytes, forked before any large import.
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
"""The exit status of a child that ended by an exception (EX_SOFTWARE)."""

_PR_SET_PDEATHSIG = 1
_STOP = {signal.SIGTERM, signal.SIGINT}
_LONGEST_PAUSE = 30.0
_STEADY = 60.0
"""Seconds after which a child counts as having started well."""


def supervise(work: Callable[[], int]) -> int:
    """Run `work` in a child until it returns, or until SIGTERM or SIGINT, which are passed on to it. A child
    that is killed or crashes is replaced, at once at first, then after growing pauses. Returns the exit
    status for the process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP | {signal.SIGCHLD})
    pause = 0.0
    while True:
        began = time.monotonic()
        child = _child(work)
        stopping, status = _wait(child)
        if stopping and -status in _STOP:
            return 0  # it had not come as far as to take signals
        if stopping or 0 <= status < CRASHED:
            return status if status >= 0 else 128 - status
        pause = 0.0 if time.monotonic() - began > _STEADY else pause
        print(
            f'{{"event": "puller died", "level": "error", "status": {status}}}', file=sys.stderr, flush=True
        )
        if pause and signal.sigtimedwait(_STOP, pause) is not None:
            return 0
        pause = min(max(pause * 2, 0.5), _LONGEST_PAUSE)


def _child(work: Callable[[], int]) -> int:
    """Fork; the child runs `work` and does not outlive its parent."""
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
    """(whether it was asked to stop, its exit status: negative for a signal). As the first process of a
    container we get the orphans of others, too."""
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
