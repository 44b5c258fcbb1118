"""Two rounds of the differential test, which `make differential` runs for a minute and more."""

from __future__ import annotations

import pytest

from tests import differential
from webhook.fast_path import memo
from webhook.server import http


@pytest.fixture(autouse=True)
def _no_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HANDSHAKE_SECONDS", 0)


@pytest.mark.parametrize("seed", [1, 2])
def test_no_answer_differs_from_the_engines(seed: int) -> None:
    counts = differential.run(seed)
    assert counts["miss"] > 50
    assert counts["hit"] > 20


def test_a_fast_path_without_its_law_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers with a replica's own name in them are remembered, as if they held for all."""
    monkeypatch.setattr(memo, "shows_constants", lambda _: False)
    with pytest.raises(differential.Differs):
        differential.run(1)
