"""How hypothesis searches: the same examples in every run, and as long as it takes.

A red run must mean that the change under test broke something. To look for new counterexamples, run
`make test ARGS="--hypothesis-profile=explore"`.
"""

from __future__ import annotations

import gc
import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=1000
)
settings.load_profile("repeatable")

gc.disable()  # until all tests are collected: no module or test is garbage


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make golden` and `make corpus` give it."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


def pytest_xdist_auto_num_workers() -> int:
    """Processes for `-n auto`: two for each processor, since many tests wait for a program or a server."""
    return 2 * (os.cpu_count() or 1)


LANES = "lint|e2e|realnode|servers|overload|vllm|fips"
LANE = re.compile(rf"^pytestmark = .*\bpytest\.mark\.({LANES})\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A module whose tests are all deselected by `-m "not e2e"` is not imported: that takes seconds."""
    if not collection_path.match("test_*.py"):
        return None
    lane = LANE.search(collection_path.read_text("utf-8"))
    expression = config.option.markexpr
    return True if lane and re.search(rf"\bnot {lane[1]}\b", expression) else None


def pytest_collection_finish() -> None:
    """The collected tests stay to the end: the garbage collector need not go through them again and again.

    It runs less often than by default, since most of what the tests make is freed without it."""
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    gc.enable()
