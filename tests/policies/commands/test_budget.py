"""The work that reading takes: it grows no faster than the text, and ends where the budget does."""

from __future__ import annotations

from functools import partial

import pytest

from policies.commands import CommandSummary, read
from policies.commands.model import REVIEW_STEPS, BudgetSpent, StepBudget
from policies.commands.reader import MAX_TEXT
from tests.calls import calls
from tests.policies.commands.hostile import HOSTILE, Asked
from tests.tables import table

LIMIT = REVIEW_STEPS // 2
STEADY = 4
"""How many times more than the text the work may grow: fixed costs count at the small end, and nesting is
followed to 32 levels only from a certain size on."""

CALLS = 20
"""Calls of functions, of C functions too, per step; 14 at most were seen."""


def asked(asked: Asked, budget: StepBudget) -> CommandSummary:
    return read(asked.argv, asked.env, budget=budget)


@table("name", HOSTILE)
def test_work_grows_no_faster_than_the_text_or_spends_the_budget(name: str) -> None:
    made = HOSTILE[name]

    def spent(size: int) -> int:
        budget = StepBudget(LIMIT)
        summary = asked(made(size), budget)
        assert summary.steps == budget.spent
        assert summary.complete is (budget.spent <= budget.limit)
        return budget.spent

    small, middle = spent(200), spent(2_000)
    if middle <= LIMIT:  # else the budget ended it, and would again
        assert middle <= max(10 * STEADY * small, 1000)
        large = spent(10_000)
        assert large <= max(5 * STEADY * middle, 1000) or large > LIMIT
    assert spent(200) == small, "the same text costs the same after other readings"


def test_a_step_is_a_bounded_amount_of_work() -> None:
    """The steps are accurate: no class of text does much work for few of them."""
    read(["curl", "db"])  # the table of clients is read once
    for name, made in HOSTILE.items():
        request, budget = made(2_000), StepBudget(5_000)
        assert calls(partial(asked, request, budget)) < CALLS * budget.spent, name


@table("name", HOSTILE)
def test_one_step_more_than_is_left_ends_the_reading(name: str) -> None:
    """With any remainder, at most one text is taken beyond it."""
    request = HOSTILE[name](1_000)
    most = 20_000
    whole = asked(request, StepBudget(most))
    for share in (0, 1, 2, 3):
        left = min(whole.steps, most) * share // 4
        budget = StepBudget(left)
        summary = asked(request, budget)
        assert summary == CommandSummary(undecidable=summary.undecidable, complete=False)
        assert summary.undecidable
        assert left < budget.spent <= left + 6_000 + whole.steps // 2


def test_the_names_of_the_pod_are_paid_for() -> None:
    names = [f"name-{number}" for number in range(1_000)]
    assert read(["true"], local_names=names).steps >= 1_000


def test_one_budget_covers_many_commands() -> None:
    script = ["sh", "-c", "curl -m 1 http://db:80; " * 200]
    alone = read(script, budget=StepBudget())
    assert alone.complete
    budget = StepBudget(3 * alone.steps + alone.steps // 2)
    together = [read(script, budget=budget) for _ in range(6)]
    assert [summary.complete for summary in together] == [True, True, True, False, False, False]
    assert together[:3] == [alone] * 3
    assert [bool(summary.commands) for summary in together] == [True, True, True, False, False, False]
    assert budget.spent > budget.limit


@pytest.mark.parametrize("program", [["sh", "-c"], ["curl"], ["python", "-c"], ["sleep"], ["timeout"], []])
def test_a_text_longer_than_linux_executes_is_not_read(program: list[str]) -> None:
    summary = read([*program, "curl db;" * (MAX_TEXT // 8) + "x"])
    assert summary == CommandSummary(
        undecidable=("an argument is longer than Linux can execute",), complete=False
    )
    assert summary.steps < 100


@pytest.mark.parametrize("length", [4_000, 5_000, 40_000])
def test_digits_without_end_are_no_number(length: int) -> None:
    digits = "9" * length
    scripts = (
        f"timeout {digits} curl db",
        f"sleep {digits}; curl db",
        f"curl -m {digits} --retry {digits} db:{digits}",
        f"for i in $(seq {digits}); do curl db; done",
        f"for i in {{1..{digits}}}; do curl db; done",
        f"while [ $n -lt {digits} ]; do n=$((n+{digits})); curl db; done",
        f"curl db ${{{digits}}} ${digits} $(({digits}))",
        f"dig +time={digits} +tries={digits} db",
        f"python -c 'import requests; requests.get({digits}, timeout={digits})'; curl db",
    )
    for script in scripts:
        summary = read(["sh", "-c", script])
        assert summary.hosts
        assert summary.complete


def test_a_spent_budget_raises() -> None:
    budget = StepBudget(10)
    budget.spend(10)
    assert budget.spent <= budget.limit
    with pytest.raises(BudgetSpent):
        budget.scan(0)
    assert budget.spent > budget.limit
    with pytest.raises(BudgetSpent):
        budget.spend(0)


def test_hostile_texts_match_their_names() -> None:
    """Most classes are as long as asked, and grow: a class that makes nothing would prove nothing."""
    for name, made in HOSTILE.items():
        sizes = [sum(map(len, made(size).argv)) + len(str(made(size).env)) for size in (1_000, 10_000)]
        assert sizes[1] > 2 * sizes[0] or name in ("functions that double", "nested shells"), name
        assert sizes[1] < 60_000, name
