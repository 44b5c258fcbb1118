"""Reasons are formatted when they are read."""

from policies.core.reasons import MAX_REASON_LENGTH, NO_REASONS, Reason, Reasons, in_words, times


def test_a_text_is_formatted_once_when_it_is_read() -> None:
    texts = iter(["because"])
    why = Reasons("standard-probes")
    why.give("spec.a", lambda: next(texts), setting="timeout", annotation=lambda: "k=v")
    for _ in range(2):
        assert list(why) == [Reason("spec.a", "standard-probes", "because", "timeout", "k=v")]
    lazy = Reasons("p")
    lazy.give("spec.a", lambda: next(texts))


def test_reasons_are_ordered_limited_and_placed() -> None:
    why = Reasons("p")
    why.give("spec.a", "a" * 10_000)
    why.give("spec.b", "b")
    first, second = why
    assert len(first.why) == MAX_REASON_LENGTH
    assert second == Reason("spec.b", "p", "b")
    placed = why.placed(lambda path: f"spec.template.{path}")
    assert [(each.path, each.policy) for each in placed] == [
        ("spec.template.spec.a", "p"),
        ("spec.template.spec.b", "p"),
    ]
    assert [each.path for each in why] == ["spec.a", "spec.b"]
    NO_REASONS.give("spec.a", "a")
    assert list(NO_REASONS) == []


FACTORS = {1.0: "", 2: "twice", 3.0: "three times", 4.5: "4.5 times"}
DURATIONS = {
    **{0: "0 s", 119: "119 s", 120: "2 min", 150: "2.5 min", 6900: "115 min"},
    **{5 * 3600: "5 h", 86_400: "24 h", 14 * 86_400: "14 days"},
}


def test_numbers_in_words() -> None:
    assert {factor: times(factor) for factor in FACTORS} == FACTORS
    assert {seconds: in_words(seconds) for seconds in DURATIONS} == DURATIONS
