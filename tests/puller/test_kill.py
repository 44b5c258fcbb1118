"""kill -9 a few times; the long run is among the end-to-end tests."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.puller import churn


async def test_a_few_kills(tmp_path: Path) -> None:
    report = await churn.run(tmp_path, kills=4, seed=1)
    assert report.seconds_to_converge < 30
