"""Sound specs that look like trouble: none of them is refused, and none is even warned about."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.core.finding import Mode, Profile
from webhook.admission import engine
from webhook.admission.review import Review
from webhook.config.load import load
from webhook.manifests import files
from webhook.manifests.cluster import ManifestCluster

SOUND = sorted((Path(__file__).parent / "sound").glob("*.yaml"))


@pytest.mark.parametrize("profile", [Profile.STANDARD, Profile.STRICT])
@pytest.mark.parametrize("path", SOUND, ids=lambda path: path.stem)
def test_a_sound_spec_has_no_findings(path: Path, profile: Profile) -> None:
    documents = files.read([str(path)])
    config = load({"rules.yaml": f"profile: {profile}"})
    cluster = ManifestCluster([document.obj for document in documents])
    said = []
    for document in documents:
        decision = engine.decide(Review(document.request(), config, cluster))
        assert decision.crashes == ()
        said += [
            f"{result.rule} at {document.name} {result.finding.path}: {result.finding.message}"
            for result in decision.results
            if result.mode in (Mode.WARN, Mode.ENFORCE) and result.exempted is None
        ]
    assert said == []
