"""Mounts in a new namespace: programs write to their fixed places, and the machine stays as it is.

python -m tests.e2e.node.mounts SCRATCH COMMAND...     become a command, in a new mount namespace
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.node import packages

WRITTEN = ("/etc", "/var/cache", "/var/lib", "/var/log")
"""Where programs write, with any configuration."""


def mount(*arguments: str | Path) -> None:
    """mount(8)."""
    subprocess.run(["mount", *arguments], check=True)


def cover(memory: Path) -> None:
    """Redirect files written to `WRITTEN` to a directory in memory."""
    for place in WRITTEN:
        upper, work = (Path(f"{memory}/{place}", name) for name in ("upper", "work"))
        upper.mkdir(parents=True)
        work.mkdir()
        options = f"lowerdir={place},upperdir={upper},workdir={work}"
        mount("-t", "overlay", "overlay", "-o", options, place)


def find_libraries() -> None:
    """Let the packages' programs find their libraries without a variable: some start others without any."""
    libraries = packages.environment()["LD_LIBRARY_PATH"].replace(":", "\n")
    Path("/etc/ld.so.conf.d").mkdir(exist_ok=True)
    Path("/etc/ld.so.conf.d/ml-chassis.conf").write_text(f"{libraries}\n")
    subprocess.run(["ldconfig"], check=True)


def main() -> None:
    """Cover, then become the command."""
    scratch, command = Path(sys.argv[1]), sys.argv[2:]
    memory = scratch / "written"
    memory.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "tmpfs", memory)
    cover(memory)
    find_libraries()
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
