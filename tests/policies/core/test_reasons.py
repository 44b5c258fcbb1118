"""Reasons are words made when they are read."""

import pytest

from policies.core.reasons import LONGEST_REASON, UNREAD, Reason, Reasons, in_words, times


def test_words_are_made_when_a_reason_is_read() -> None:
    made: list[str] = []

    def words() -> str:
        made.append("x")
        return "because"

    why = Reasons("standard-probes")
    why.give("spec.a", words, setting="timeout", annotation=lambda: "k=v")
    assert made == []
    assert list(why) == [Reason("spec.a", "standard-probes", "because", "timeout", "k=v")]
    assert made == ["x"]


def test_reasons_are_given_in_order_and_bounded() -> None:
    why = Reasons("p")
    why.give("spec.a", "a" * 10_000)
    why.give("spec.b", "b")
    first, second = why
    assert len(first.why) == LONGEST_REASON
    assert second == Reason("spec.b", "p", "b")


def test_reasons_move_with_the_pod_into_its_parent() -> None:
    why = Reasons("p")
    why.give("spec.a", "a")
    moved = why.placed(lambda path: f"spec.template.{path}")
    assert [each.path for each in moved] == ["spec.template.spec.a"]
    assert [each.policy for each in moved] == ["p"]
    assert [each.path for each in why] == ["spec.a"]


def test_unread_reasons_are_not_kept() -> None:
    UNREAD.give("spec.a", "a")
    assert list(UNREAD) == []


@pytest.mark.parametrize(
    ("factor", "said"), [(1.0, ""), (2, "twice"), (3.0, "three times"), (4.5, "4.5 times")]
)
def test_factors_in_words(factor: float, said: str) -> None:
    assert times(factor) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (150, "2.5 min"),
        (6900, "115 min"),
        (5 * 3600, "5 h"),
        (86_400, "24 h"),
        (14 * 86_400, "14 days"),
    ],
)
def test_durations_in_words(seconds: int, said: str) -> None:
    assert in_words(seconds) == said
