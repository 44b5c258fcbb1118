"""The fuzzer's corpus, read by the targets without the fuzzer."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.commands import read
from tests.fuzz import targets
from tests.fuzz.__main__ import CORPUS

KEPT = sorted(CORPUS.glob("*/*"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_the_fuzzer_found_holds(path: Path) -> None:
    assert targets.TARGETS[path.parent.name](path.read_bytes()) > 0


def test_every_target_has_a_corpus() -> None:
    assert {path.parent.name for path in KEPT} == targets.TARGETS.keys()


def test_an_unpaid_cost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle fails if reading does more than the budget pays for."""

    def unpaid(*asked: object, **options: object) -> object:
        for number in range(100_000):
            abs(number)
        return read(["true"])

    monkeypatch.setattr(targets, "read", unpaid)
    with pytest.raises(AssertionError, match="calls for"):
        targets.commands(b"strue")
