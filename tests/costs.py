"""What each test costs, in CPU seconds of the process and the children that it waited for.

`make test ARGS="-p tests.costs -n 0"` prints the most expensive tests and files, and the cost of collecting
them. Seconds on the clock depend on what else the machine does; these depend on it less.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from operator import itemgetter

import pytest

MAX = 40
"""Lines of each table."""
_tests: defaultdict[str, float] = defaultdict(float)
_collected = [0.0]


def _cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Count a test with its fixtures; the cases of a parametrised test count as one."""
    before = _cpu()
    result = yield
    _tests[item.nodeid.partition("[")[0]] += _cpu() - before
    return result


def pytest_collection_finish() -> None:
    """Collecting and importing end here."""
    _collected[0] = _cpu()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the tables."""
    files: defaultdict[str, float] = defaultdict(float)
    for test, seconds in _tests.items():
        files[test.partition("::")[0]] += seconds
    terminalreporter.section(f"CPU seconds: {_cpu():.1f}, of which {_collected[0]:.1f} to collect")
    for table in (files, _tests):
        terminalreporter.write_line("")
        for name, seconds in sorted(table.items(), key=itemgetter(1), reverse=True)[:MAX]:
            terminalreporter.write_line(f"{seconds:8.2f}  {name}")
