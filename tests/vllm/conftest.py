"""Options of `make vllm`, and what its tests report."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.vllm.install import NEWEST, RELEASES
from tests.vllm.kubelet import Seen

Keep = Callable[[Seen], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--release", choices=[*RELEASES], default=NEWEST, help="the vLLM that is tried")
    parser.addoption("--seconds", type=int, default=600, help="how long a healthy vLLM is watched (600)")


@pytest.fixture(scope="session")
def release(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--release"))


@pytest.fixture(scope="session")
def seconds(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--seconds"))


@pytest.fixture
def keep(record_property: Callable[[str, object], None]) -> Keep:
    """Adds what a probe did to the test's report, and prints it."""

    def kept(seen: Seen) -> None:
        for name, value in seen.figures.items():
            record_property(name, value)
        print(seen.figures)
        previous = None
        for result in seen.results:
            if result.output != previous:
                print(f"{result.after:.0f}: {result.output}")
            previous = result.output

    return kept
