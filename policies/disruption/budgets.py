"""The disruption budgets that select pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from policies.core.facts import Facts
from policies.core.listing import TypedIndex
from policies.kube.objects.scaling import PodDisruptionBudget

_Label: TypeAlias = tuple[str, str] | None


def budgets_of(labels: Mapping[str, str], facts: Facts) -> Iterator[PodDisruptionBudget]:
    """The budgets of the namespace that select pods with these labels, those of one label by name."""
    budgets = facts.objects(PodDisruptionBudget)
    if budgets:
        for label in (None, *labels.items()):
            for budget in sorted(budgets.by(BY_LABEL, label), key=lambda each: each.name):
                if budget.selects(labels):
                    yield budget


def _label_of(budget: PodDisruptionBudget) -> Iterator[_Label]:
    """One label of a budget's selector; None if it has no labels."""
    selector = budget.spec.selector
    yield next(iter(selector.match_labels.items()), None) if selector is not None else None


BY_LABEL: Final = TypedIndex(PodDisruptionBudget, _label_of)
"""The budgets by one label of their selectors."""
