"""Options of `make servers` and `make overload`."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ci", action="store_true", help="only the servers that every run of CI tries")
    parser.addoption("--record", action="store_true", help="write down in verified.yaml what passed")
    parser.addoption("--minutes", type=float, default=60, help="how long each server is overloaded")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--ci", default=False):
        items[:] = [
            item for item in items if "servers" not in item.keywords or item.get_closest_marker("ci_server")
        ]
