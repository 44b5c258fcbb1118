"""Options of `make vllm`."""

from __future__ import annotations

import pytest

from tests.vllm.install import NEWEST, RELEASES


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--release", choices=[*RELEASES], default=NEWEST, help="the vLLM that is tried")


@pytest.fixture(scope="session")
def release(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--release"))
