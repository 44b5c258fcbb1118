"""Exemptions with an end: they count through their last day, and are warned about a week before."""

from dataclasses import replace
from datetime import date

import pytest

from policies.core.annotations import EXEMPT
from policies.core.facts import NoCluster
from policies.kube.json import Json
from tests.manifests import manifest
from webhook.admission.configuration import Config
from webhook.admission.engine import decide, validate
from webhook.admission.exemptions import Exemptions, ExemptionState, exemptions_in
from webhook.admission.review import Review
from webhook.config.load import load
from webhook.fast_path.memo import Memo
from webhook.manifests.files import Document

TODAY = date(2026, 3, 10)
RULE = "liveness-external-dependency"


def on(day: date, **files: str) -> Config:
    return replace(load({f"{name}.yaml": text for name, text in files.items()}), today=day)


@pytest.mark.parametrize(
    ("written", "state", "note"),
    [
        (f"{RULE}=asked", ExemptionState.COUNTS, ""),
        (f"{RULE}=asked until=2026-12-31", ExemptionState.COUNTS, ""),
        (f"{RULE}=asked until=2026-03-18", ExemptionState.COUNTS, ""),
        (
            f"{RULE}=asked until=2026-03-17",
            ExemptionState.ENDS_SOON,
            f"the exemption from {RULE} ends on 2026-03-17",
        ),
        (
            f"{RULE}=asked until=2026-03-10",
            ExemptionState.ENDS_SOON,
            f"the exemption from {RULE} ends on 2026-03-10",
        ),
        (
            f"{RULE}=asked until=2026-03-09",
            ExemptionState.ENDED,
            f"{RULE} is no longer exempted: the exemption ended on 2026-03-09",
        ),
        (f"{RULE}=asked until=soon", ExemptionState.NO_DATE, "until=soon isn't a date: use until=2030-12-31"),
        (f"{RULE}=asked until=20261231", ExemptionState.NO_DATE, "until=20261231 isn't a date"),
        (f"{RULE}=asked until=", ExemptionState.NO_DATE, "until= isn't a date"),
        (
            f"{RULE}=until=2026-12-31",
            ExemptionState.NO_REASON,
            f"because the reason is missing: use {RULE}=<reason>",
        ),
        (f"{RULE}=until=2026-12-31 it is", ExemptionState.COUNTS, ""),
        ("liveness-external-dependancy=x", ExemptionState.UNKNOWN, f"; did you mean {RULE}?"),
        ("policy-config-invalid=x", ExemptionState.FORBIDDEN, "can't be exempted here"),
    ],
)
def test_what_becomes_of_one(written: str, state: ExemptionState, note: str) -> None:
    (found,) = exemptions_in({EXEMPT: written}, on(TODAY), "ml")
    assert found.state is state
    assert note in found.note
    assert bool(found.note) == bool(note)
    read = Exemptions.read({EXEMPT: written}, on(TODAY), "ml")
    assert bool(read.reasons) == found.counts == (state in (ExemptionState.COUNTS, ExemptionState.ENDS_SOON))
    assert read.notes == ((found.note,) if note else ())


def hazard(written: str) -> Json:
    probe = {"exec": {"command": ["curl", "-f", "http://payments/health"]}}
    return manifest(
        "Deployment",
        "x",
        {
            "replicas": 2,
            "template": {"spec": {"containers": [{"name": "a", "image": "x:1", "livenessProbe": probe}]}},
        },
        namespace="ml",
        annotations={EXEMPT: written},
    )


def test_the_day_after_its_last_it_is_refused_again() -> None:
    request = Document("x", 0, hazard(f"{RULE}=asked until=2026-03-10")).request()
    last, after = (decide(Review(request, on(date(2026, 3, day)), NoCluster())) for day in (10, 11))
    assert last.allowed
    assert not after.allowed
    assert any("no longer exempted" in note for note in after.notes)


def test_the_memo_forgets_the_exemptions_of_the_day_before() -> None:
    memo = Memo()
    request = Document("x", 0, hazard(f"{RULE}=asked until=2026-03-10")).request()
    today = on(TODAY)
    for _ in range(2):
        assert memo.answer("validate", request, today, NoCluster(), validate).response.allowed
    tomorrow = replace(today, today=date(2026, 3, 11))
    assert not memo.answer("validate", request, tomorrow, NoCluster(), validate).response.allowed


def test_an_override_ends_too() -> None:
    text = f"overrides: [{{namespaces: [ml], modes: {{{RULE}: warn}}, until: 2026-03-10}}]"
    request = Document("x", 0, hazard("")).request()
    assert decide(Review(request, on(TODAY, webhook=text), NoCluster())).allowed
    assert not decide(Review(request, on(date(2026, 3, 11), webhook=text), NoCluster())).allowed
