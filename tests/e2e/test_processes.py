"""No process that a test run starts outlives it, even if it is killed."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import Process, ProcessFailedError

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
STARTS_ONE_AND_HANGS = f"""
import sys, time
from pathlib import Path
from tests.e2e.processes import Process
child = Process("sleep", {SLEEP!r}, Path(sys.argv[1]))
child.wait_until(lambda: "up" in child.log_tail(), 30)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_child_dies_with_the_run_that_started_it(tmp_path: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", STARTS_ONE_AND_HANGS, str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    with run:
        assert run.stdout is not None
        child = os.pidfd_open(int(run.stdout.readline()))
        run.kill()
    try:
        ended, _, _ = select.select([child], [], [], 10)  # a pidfd is readable once its process is gone
        assert ended
    finally:
        os.close(child)


def test_the_error_shows_the_log_of_a_process_that_ended(tmp_path: Path) -> None:
    process = Process("short", [sys.executable, "-c", "print('no such flag'); exit(3)"], tmp_path / "log")
    with pytest.raises(ProcessFailedError, match=r"short ended with status 3; .*\n.*no such flag"):
        process.wait_until(lambda: False, timeout=30)


def test_a_process_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    process = Process("slow", SLEEP, tmp_path / "log")
    try:
        with pytest.raises(ProcessFailedError, match=r"slow was not ready within 0\.1 s"):
            process.wait_until(lambda: False, timeout=0.1)
    finally:
        process.kill()
    assert not process.running
