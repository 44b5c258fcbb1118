"""A puller whose cache is mounted by SSHFS: a real server, and a client that remembers names and times.

python -m tests.e2e.puller.sshfs EXPORT MOUNT FLAGS...     mount the export, then run as a puller
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.e2e.node import packages
from tests.e2e.processes import TETHER

PACKAGES = ("openssh-sftp-server", "sshfs")
REMEMBERED = 4
"""Seconds for which the client remembers."""
STALE = 8.0
RENEWAL = 1.0
"""The cache's own times, shortened as the client's are: 120 s and 10 s where NFS remembers for 60 s."""


def program(export: Path, mount: Path) -> list[str]:
    """The command, but for the puller's flags. It needs the environment of the packages."""
    server = packages.root(PACKAGES) / "usr/lib/openssh/sftp-server"
    return ["unshare", "--mount", sys.executable, "-m", __name__, *map(str, (server, export, mount))]


def _mount(server: str, export: str, mount: str) -> None:
    """Both ends talk over a socket and end with this process."""
    tether = sys.executable, str(TETHER), str(os.getpid())
    options = f"passive,dcache_timeout={REMEMBERED}"
    commands = (
        [server],
        ["sshfs", "-f", "-o", options, f":{export}", mount],
    )
    for end, command in zip(socket.socketpair(), commands, strict=True):
        with end:
            subprocess.Popen([*tether, *command], stdin=end.fileno(), stdout=end.fileno())
    deadline = time.monotonic() + 30
    while not os.path.ismount(mount):
        if time.monotonic() > deadline:
            raise SystemExit("sshfs did not mount")
        time.sleep(0.02)


def main() -> int:
    """Mount, then become the puller."""
    _mount(*sys.argv[1:4])
    del sys.argv[1:4]
    from puller.storage import cache

    cache.STALE, cache.RENEWAL = STALE, RENEWAL
    from puller.__main__ import main as puller

    return puller()


if __name__ == "__main__":
    sys.exit(main())
