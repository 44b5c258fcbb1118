"""`make node`: the printed commands work, and no part of it is left in any case."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.node import reaper, sandbox
from tests.e2e.processes import Process

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Process]:
    """The real node of `make node`, up and in use."""
    if reason := sandbox.why_not():
        pytest.skip(f"no real node on this machine: {reason}")
    process = Process("make node", [sys.executable, "-m", "tests.e2e.node"], tmp_path / "log")
    try:
        process.wait_until(lambda: "Ctrl-C" in process.log_tail(), 600)
        yield process
    finally:
        process.kill()


def namespaces(pid: int) -> set[str]:
    """The mount, network and PID namespaces of a process."""
    return {str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for kind in ("mnt", "net", "pid")}


def living(directory: Path, spaces: set[str]) -> list[str]:
    """The command lines of the processes in these namespaces, and of those in the node's containers."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            contained = directory.name in (entry / "cgroup").read_text()
            if contained or namespaces(int(entry.name)) & spaces:
                found.append((entry / "cmdline").read_text().replace("\0", " "))
    return found


def mounts(directory: Path) -> list[str]:
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(directory) in line]


def cgroups(directory: Path) -> list[Path]:
    return [
        hierarchy / directory.name
        for hierarchy in reaper.hierarchies("cgroup", "cgroup2")
        if (hierarchy / directory.name).exists()
    ]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_however_it_ends(node: Process, end: signal.Signals) -> None:
    said = node.log_tail(60)
    found = re.search(r"export PATH=(\S+)/bin:", said)
    assert found is not None, said
    directory = Path(found[1])
    spaces = namespaces(int((directory / "init.pid").read_text()))
    assert not spaces & namespaces(os.getpid())
    applied = re.search(r"kubectl apply -n with .*\.yaml", said)
    assert applied is not None, said
    environment = os.environ | {"PATH": f"{directory}/bin:{os.environ['PATH']}"}

    def shell(command: str) -> str:
        done = subprocess.run(
            ["sh", "-c", command], env=environment, text=True, capture_output=True, check=True
        )
        return done.stdout

    shell(applied[0])
    shell("kubectl -n with rollout status deployment/api --timeout=120s")
    asked = re.search(r"on-node curl .*", said)
    assert asked is not None, said
    assert shell(asked[0]) == "ok\n"
    before = mounts(directory.parent)
    running = "\n".join(living(directory, spaces))
    for name in ("kube-apiserver", "kubelet", "containerd-shim", "/server.py", "chassis serve"):
        assert name in running, "what has to be gone afterwards is there now"
    assert cgroups(directory)

    os.kill(node.pid, end)
    node.wait_until_it_ends(60)
    reaped = Process("wait", ["flock", f"{directory}{reaper.LOCK}", "true"], node.log)
    reaped.wait_until_it_ends(60)
    assert living(directory, spaces) == []
    assert cgroups(directory) == []
    assert mounts(directory.parent) == before == []
    assert not directory.exists()
    Path(f"{directory}{reaper.LOCK}").unlink(missing_ok=True)


def test_what_a_killed_reaper_left_is_removed_by_the_next_run(tmp_path: Path) -> None:
    left = tmp_path / f"{reaper.PREFIX}left"
    left.mkdir()
    (left / "file").touch()
    lock = Path(f"{left}{reaper.LOCK}")
    lock.touch()
    kept = tmp_path / f"{reaper.PREFIX}kept"
    kept.mkdir()
    with Path(f"{kept}{reaper.LOCK}").open("w") as held:
        subprocess.run(["flock", "--exclusive", str(held.fileno())], pass_fds=[held.fileno()], check=True)
        reaper.sweep(tmp_path)
    assert not left.exists()
    assert not lock.exists()
    assert kept.exists(), "a run that goes on is let alone"
