"""A round of the differential test, which `make differential` runs for a minute and more."""

from __future__ import annotations

import pytest

from policies.core.facts import Cluster
from tests import differential
from webhook.admission.answer import Recalled
from webhook.admission.configuration import Config
from webhook.fast_path import memo
from webhook.fast_path.memo import Memo
from webhook.server import admission_server


@pytest.fixture(autouse=True)
def _no_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_server, "LAST_HANDSHAKES_SECONDS", 0)


def test_no_answer_differs_from_the_engines() -> None:
    counts = differential.run(1)
    assert counts["miss"] > 50
    assert counts["hit"] > 20


def test_a_wrong_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is given to requests known by their bytes."""
    recalled = memo.Memo.recall

    def wrong(self: Memo, endpoint: str, body: bytes, config: Config, cluster: Cluster) -> Recalled | None:
        found = recalled(self, endpoint, body, config, cluster)
        return found and found._replace(body=found.body.replace(b"true", b"false"))

    monkeypatch.setattr(memo.Memo, "recall", wrong)
    with pytest.raises(differential.Differs):
        differential.run(1)
