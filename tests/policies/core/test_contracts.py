"""Modes of findings."""

from typing import Any

import pytest

from policies.core.contracts import Family, Modes, Rule, RuleDocument
from policies.core.finding import Certainty, Mode, Profile


def test_modes_have_an_order() -> None:
    assert Mode.ENFORCE.at_most(Mode.WARN) is Mode.WARN
    assert Mode.AUDIT.at_most(Mode.WARN) is Mode.AUDIT
    assert [mode.strength for mode in Mode] == [0, 1, 2, 3]


def rule_with(*, modes: Modes, likely: Modes) -> Rule:
    words: dict[str, Any] = dict.fromkeys(("what", "why", "remediation", "source", "bad", "good"), "-")
    document = RuleDocument(family=Family.CASCADE, modes=modes, likely=likely, **words)
    return Rule("x", lambda target, facts: (), None, lambda: document)


@pytest.mark.parametrize(
    ("profile", "certainty", "mode"),
    [
        (Profile.OBSERVE, Certainty.CERTAIN, Mode.AUDIT),
        (Profile.STANDARD, Certainty.CERTAIN, Mode.ENFORCE),
        (Profile.STANDARD, Certainty.LIKELY, Mode.WARN),
        (Profile.STRICT, Certainty.LIKELY, Mode.ENFORCE),
        (Profile.STRICT, Certainty.UNDECIDED, Mode.WARN),
        (Profile.STANDARD, Certainty.UNDECIDED, Mode.WARN),
    ],
)
def test_a_finding_is_answered_by_profile_and_certainty(
    profile: Profile, certainty: Certainty, mode: Mode
) -> None:
    rule = rule_with(
        modes=Modes(standard=Mode.ENFORCE, strict=Mode.ENFORCE),
        likely=Modes(standard=Mode.WARN, strict=Mode.ENFORCE),
    )
    assert rule.mode(profile, certainty) is mode


def test_a_likely_finding_about_uncertain_pods_has_no_stronger_mode() -> None:
    rule = rule_with(
        modes=Modes(standard=Mode.WARN, strict=Mode.WARN),
        likely=Modes(standard=Mode.AUDIT, strict=Mode.WARN),
    )
    assert rule.mode(Profile.STANDARD, Certainty.LIKELY.in_doubt()) is Mode.AUDIT
    assert rule.mode(Profile.STRICT, Certainty.LIKELY.in_doubt()) is Mode.WARN
    assert rule.mode(Profile.STANDARD, Certainty.CERTAIN.in_doubt()) is Mode.WARN
