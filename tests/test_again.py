"""`.ci/again`: which failures get a second try."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

AGAIN = Path(__file__).parents[1] / ".ci/again"
MAKE = """#!/bin/bash
echo "$@" >> calls
n=$(wc -l < calls)
cat "out$n"
exit "$(cat "status$n")"
"""


BELOW_FLOOR = """\
ERROR: Coverage failure: total of 92 is less than fail-under=93
FAIL Required test coverage of 93% not reached. Total coverage: 92.10%
"""


def again(
    directory: Path, *runs: tuple[int, str], asked: tuple[str, ...] = ("apiserver",)
) -> tuple[int, str, list[str]]:
    """The exit status, the output, and each call of make, which ends and prints as given."""
    make = directory / "make"
    make.write_text(MAKE)
    make.chmod(0o755)
    for number, (status, output) in enumerate(runs, start=1):
        (directory / f"status{number}").write_text(str(status))
        (directory / f"out{number}").write_text(output)
    environment = os.environ | {"PATH": f"{directory}:{os.environ['PATH']}"}
    done = subprocess.run(
        [AGAIN, *asked], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, (directory / "calls").read_text().splitlines()


def test_a_run_that_passes_runs_once(tmp_path: Path) -> None:
    status, output, calls = again(tmp_path, (0, "418 passed\n"))
    assert (status, output, len(calls)) == (0, "418 passed\n", 1)


@pytest.mark.parametrize("others", [0, 9])
def test_what_failed_runs_again_and_is_named(tmp_path: Path, others: int) -> None:
    failed = "".join(f"FAILED tests/b.py::t{n} - x\n" for n in range(others))
    first = (
        f"the first trace\n{failed}FAILED tests/a.py::test_a[without end] - assert 0\n{others + 1} failed\n"
    )
    status, output, calls = again(tmp_path, (2, first), (0, "1 passed\n"))
    assert status == 0
    assert output.startswith(first)
    assert "1 passed\nunsteady, passed when run again: tests/a.py::test_a[without end]\n" in output
    assert output.count("unsteady, passed when run again") == others + 1
    assert [("--last-failed" in call) for call in calls] == [False, True]


@pytest.mark.parametrize(
    ("first", "tries"),
    [
        pytest.param("FAILED tests/a.py::test_a - assert 0\n", 2, id="fails twice"),
        pytest.param("make: *** Error 1\n", 1, id="no test was run"),
        pytest.param("".join(f"FAILED tests/a.py::t{n} - x\n" for n in range(11)), 1, id="too many"),
        pytest.param(BELOW_FLOOR, 1, id="below the floor of coverage"),
        pytest.param(
            f"{BELOW_FLOOR}FAILED tests/a.py::test_a - assert 0\n", 1, id="below it, and a test failed"
        ),
    ],
)
def test_what_is_broken_fails(tmp_path: Path, first: str, tries: int) -> None:
    status, _, calls = again(tmp_path, (2, first), (1, first))
    assert (status, len(calls)) == (1, tries)


@pytest.mark.parametrize(
    ("asked", "first", "second"),
    [
        (("coverage",), [], ["--no-cov"]),
        (("pythons", "--newest"), ["--newest"], []),  # .ci/pythons takes it only as the first argument
        (("pythons", "--newest", "--lines"), ["--newest", "--lines"], ["--no-cov"]),
        (("vllm", "-m", "ci_vllm"), ["-m", "ci_vllm"], []),
    ],
)
def test_what_each_target_is_given(
    tmp_path: Path, asked: tuple[str, ...], first: list[str], second: list[str]
) -> None:
    broken = "FAILED tests/a.py::test_a - assert 0\n"
    status, _, calls = again(tmp_path, (2, broken), (0, "1 passed\n"), asked=asked)
    assert status == 0
    (target, *once), (again_target, *twice) = (shlex.split(call.replace("ARGS=", "")) for call in calls)
    assert (target, again_target) == (asked[0], asked[0])
    assert once == [*first, "-o", once[-1]]
    assert once[-1].startswith("cache_dir=/")
    assert twice == [*once, "--last-failed", "--last-failed-no-failures=none", *second]


def test_a_second_try_of_real_tests(tmp_path: Path) -> None:
    """Only the test that failed runs again, and the second run is not measured against the floor."""
    (tmp_path / "test_x.py").write_text(
        "from pathlib import Path\n"
        "here = Path(__file__).parent\n"
        "def test_fails_once():\n"
        "    failed = here / 'failed'\n"
        "    before = failed.exists()\n"
        "    failed.touch()\n"
        "    assert before\n"
        "def test_passes():\n"
        "    (here / 'passed').touch(exist_ok=False)\n"
    )
    (tmp_path / "Makefile").write_text(
        "coverage:\n"
        f"\t@{sys.executable} -m pytest -p pytest_cov -ra --cov=test_x --cov-fail-under=90 $(ARGS)\n"
    )
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COVERAGE_FILE": str(tmp_path / ".coverage")}
    done = subprocess.run(
        [AGAIN, "coverage"], cwd=tmp_path, env=os.environ | alone, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("Required test coverage of 90% reached") == 1
    assert re.findall(r"^test_x\.py ([F.]+) ", done.stdout, re.MULTILINE) == ["F.", "."]
    assert done.stdout.endswith("unsteady, passed when run again: test_x.py::test_fails_once\n")
