"""Sound specs that look like trouble: none of them is refused, and none is even warned about."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.core.mode import Mode, Profile
from webhook.admission import engine
from webhook.config import load as config
from webhook.kube import offline

SOUND = sorted((Path(__file__).parent / "sound").glob("*.yaml"))


@pytest.mark.parametrize("profile", [Profile.STANDARD, Profile.STRICT])
@pytest.mark.parametrize("path", SOUND, ids=lambda path: path.stem)
def test_nothing_is_said_of_a_sound_spec(path: Path, profile: Profile) -> None:
    documents = offline.read([str(path)])
    snapshot = config.load({"rules.yaml": f"profile: {profile}"})
    cluster = offline.ManifestCluster([document.obj for document in documents])
    said = []
    for document in documents:
        decision = engine.decide(document.request(), snapshot, cluster)
        assert decision.crashes == ()
        said += [
            f"{verdict.rule} at {document.name} {verdict.finding.path}: {verdict.finding.message}"
            for verdict in decision.verdicts
            if verdict.mode in (Mode.WARN, Mode.ENFORCE) and verdict.exempted is None
        ]
    assert said == []
