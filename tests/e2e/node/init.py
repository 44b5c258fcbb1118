"""PID 1 of a sandbox: `python -m tests.e2e.node.init DIRECTORY COMMAND...`, inside new namespaces.

It makes them look like a separate node, runs the command, reaps orphaned processes, and ends with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.e2e.node.mounts import cover, mount

NODE = "node-a"
ADDRESS = "172.30.0.1"
# The kubelet sets these for the whole machine, outside of any namespace.
KERNEL_WIDE = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


def main() -> int:
    """Prepare the namespaces, run the command, and return its exit status."""
    directory, command = Path(sys.argv[1]), sys.argv[2:]
    # While /proc is still that of the namespace outside, which is where the number is of use.
    (directory / "init.pid").write_text(os.readlink("/proc/self"))  # noqa: PTH115
    _mounts()
    _network()
    _run("hostname", NODE)
    # A handler, not SIG_IGN, which the command would inherit.
    signal.signal(signal.SIGINT, lambda *_: None)
    child = os.posix_spawnp(command[0], command, os.environ)

    def terminate(*_: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)

    signal.signal(signal.SIGTERM, terminate)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _mounts() -> None:
    mount("-t", "proc", "proc", "/proc")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for name in ("netns", "lock", "cgroup", "written"):
        Path("/run", name).mkdir()
    cover(Path("/run/written"))
    # A /sys of this network namespace, with the cgroup hierarchies as they were.
    mount("--rbind", "/sys/fs/cgroup", "/run/cgroup")
    mount("-t", "sysfs", "sysfs", "/sys")
    mount("--rbind", "/run/cgroup", "/sys/fs/cgroup")
    _run("umount", "--lazy", "/run/cgroup")
    for name in KERNEL_WIDE:
        real, own = Path("/proc/sys", name), Path("/run/kernel-wide", name)
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(real.read_text())
        mount("--bind", own, real)


def _network() -> None:
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "link", "add", "node0", "type", "bridge")
    _run("ip", "address", "add", f"{ADDRESS}/24", "dev", "node0")
    _run("ip", "link", "set", "node0", "up")
    # It leads nowhere; without a default route no ClusterIP can be reached from the node itself.
    _run("ip", "route", "add", "default", "via", "172.30.0.254", "dev", "node0")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())
