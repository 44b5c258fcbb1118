"""`.ci/again`: which failures of tests with real servers get a second try."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

AGAIN = Path(__file__).parents[1] / ".ci/again"
MAKE = """#!/bin/bash
echo "$@" >> calls
n=$(wc -l < calls)
cat "out$n"
exit "$(cat "status$n")"
"""


def again(directory: Path, *runs: tuple[int, str]) -> tuple[int, str, list[str]]:
    """The exit status, the output, and each call of make, which ends and prints as given."""
    make = directory / "make"
    make.write_text(MAKE)
    make.chmod(0o755)
    for number, (status, output) in enumerate(runs, start=1):
        (directory / f"status{number}").write_text(str(status))
        (directory / f"out{number}").write_text(output)
    environment = os.environ | {"PATH": f"{directory}:{os.environ['PATH']}"}
    done = subprocess.run(
        [AGAIN, "apiserver"], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, (directory / "calls").read_text().splitlines()


def test_a_run_that_passes_runs_once(tmp_path: Path) -> None:
    status, output, calls = again(tmp_path, (0, "418 passed\n"))
    assert (status, output, len(calls)) == (0, "418 passed\n", 1)


@pytest.mark.parametrize("others", [0, 9])
def test_what_failed_runs_again_and_is_named(tmp_path: Path, others: int) -> None:
    failed = "".join(f"FAILED tests/b.py::t{n} - x\n" for n in range(others))
    first = f"the first trace\n{failed}FAILED tests/a.py::test_a[x] - assert 0\n{others + 1} failed\n"
    status, output, calls = again(tmp_path, (2, first), (0, "1 passed\n"))
    assert status == 0
    assert output.startswith(first)
    assert "1 passed\nunsteady, passed when run again: tests/a.py::test_a[x]\n" in output
    assert output.count("unsteady, passed when run again") == others + 1
    assert [("--last-failed" in call) for call in calls] == [False, True]


@pytest.mark.parametrize(
    ("first", "tries"),
    [
        pytest.param("FAILED tests/a.py::test_a - assert 0\n", 2, id="fails twice"),
        pytest.param("make: *** Error 1\n", 1, id="no test was run"),
        pytest.param("".join(f"FAILED tests/a.py::t{n} - x\n" for n in range(11)), 1, id="too many"),
    ],
)
def test_what_is_broken_fails(tmp_path: Path, first: str, tries: int) -> None:
    status, _, calls = again(tmp_path, (2, first), (1, first))
    assert (status, len(calls)) == (1, tries)
