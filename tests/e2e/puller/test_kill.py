"""kill -9, a hundred times, at random points, under config churn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.puller import churn


@pytest.mark.e2e
async def test_a_hundred_kills(tmp_path: Path) -> None:
    report = await churn.run(tmp_path, kills=100, seed=20260101)
    assert report.seconds_to_converge < 30
    print(report)
