"""A table reports each of its cases that fails, and no other."""

from __future__ import annotations

import pytest

from tests.tables import table

seen: list[object] = []


def compared(one: int, other: int) -> None:
    seen.append((one, other))
    assert one == other


def test_every_case_is_tried_and_each_failure_named() -> None:
    whole = table(("one", "other"), [(1, 1), (2, 3), (4, 4), (5, 6)])(compared)
    assert whole.__name__ == "compared"
    with pytest.raises(BaseExceptionGroup, match="2 of 4 cases fail") as raised:
        whole()
    assert seen == [(1, 1), (2, 3), (4, 4), (5, 6)]
    assert [failure.__notes__ for failure in raised.value.exceptions] == [
        ["in the case (2, 3)"],
        ["in the case (5, 6)"],
    ]


def test_what_pytest_itself_fails_counts_too() -> None:
    def raises_nothing(value: int) -> None:
        with pytest.raises(ValueError, match="no"):
            int(value)

    with pytest.raises(BaseExceptionGroup, match="1 of 1 cases fail"):
        table("value", [1])(raises_nothing)()


def test_a_table_has_cases() -> None:
    with pytest.raises(AssertionError, match="would hold nothing"):
        table("value", [])


@table("value", [1, 2])
def test_sound_cases_pass(value: int) -> None:
    assert value > 0
