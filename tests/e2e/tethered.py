"""Runs a command that dies with its parent: `python tethered.py PARENT_PID COMMAND...`.

A test run that is killed must not leave an API server behind. The kernel sends SIGKILL to this
process, and to the command that replaces it, as soon as the parent thread is gone. This is a separate
program, not a `preexec_fn`, because Python code between fork and exec may deadlock in a process that has
threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, then become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above took effect
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
