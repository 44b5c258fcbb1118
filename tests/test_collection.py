"""Every test is found."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def test_no_test_is_in_a_folder_that_pytest_skips(pytestconfig: pytest.Config) -> None:
    skipped = pytestconfig.getini("norecursedirs")
    folders = {path.parent for path in TESTS.rglob("test_*.py")}
    parts = {part for folder in folders for part in folder.relative_to(TESTS).parts}
    assert len(parts) > 20
    assert [part for part in sorted(parts) if any(fnmatch(part, pattern) for pattern in skipped)] == []
