"""The law of injection: no finding of any mode lies at an injected field, and no injection adds a finding.

`tests.policies.injection` has the check. Here are the golden cases, the cases of the rules, the examples and
the sound specs; `tests/corpus/test_corpora.py` has other projects' manifests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.core.annotations import POLICY_LABEL
from policies.core.mode import Profile
from policies.kube.json import mapping
from policies.kube.metadata import labels_of
from tests.policies import test_golden, test_rules
from tests.policies.injection import objections
from webhook.config.load import load
from webhook.manifests.files import ManifestCluster, read

ROOT = Path(__file__).parents[2]
FOLDERS = ("examples", "tests/corpus/sound", "tests/policies")
"""Their files are the objects of one cluster each."""
FILES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).glob("*.yaml")
    if path.name not in ("modes.yaml", "operator_pods.yaml")
)


@pytest.fixture(params=list(Profile))
def profile(request: pytest.FixtureRequest) -> Profile:
    chosen: Profile = request.param
    return chosen


@pytest.mark.parametrize("policy", sorted({case.parent.name for case in test_golden.CASES}))
def test_golden_cases(policy: str, profile: Profile) -> None:
    found = {}
    for case in test_golden.CASES:
        if case.parent.name == policy:
            settings = case / "settings.yaml"
            data = {f"{policy}.yaml": settings.read_text()} if settings.exists() else {}
            config = load({**data, "rules.yaml": f"profile: {profile}"})
            [obj] = test_golden.documents(case / "input.yaml")
            cluster = ManifestCluster(test_golden.documents(case / "facts.yaml"))
            found[case.name] = objections(obj, config, cluster)
    assert {name: breaches for name, breaches in found.items() if breaches} == {}


@pytest.mark.parametrize("rule", sorted({path.parent.name for path in test_rules.FILES}))
def test_cases_of_rules(rule: str, profile: Profile) -> None:
    found = {}
    for path in test_rules.FILES:
        if path.parent.name == rule:
            obj, *rest = objects = test_rules.Case.read(path).objects
            policy = [
                mapping(other, "data") for other in rest if labels_of(other).get(POLICY_LABEL) == "true"
            ]
            config = load({"rules.yaml": f"profile: {profile}"} | (policy[0] if policy else {}))
            found[path.name] = objections(obj, config, ManifestCluster(objects, whole=True))
    assert {name: breaches for name, breaches in found.items() if breaches} == {}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files(path: Path, profile: Profile) -> None:
    objects = [document.obj for document in read([str(path)])]
    config, cluster = load({"rules.yaml": f"profile: {profile}"}), ManifestCluster(objects)
    assert [breach for obj in objects for breach in objections(obj, config, cluster)] == []
