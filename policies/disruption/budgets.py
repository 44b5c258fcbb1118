"""The disruption budgets that select pods, and the workloads that a budget selects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from policies.core.facts import Facts
from policies.core.listing import TypedIndex
from policies.core.services import with_labels
from policies.kube.json import Json
from policies.kube.objects.metadata import LabelSelector
from policies.kube.objects.scaling import PodDisruptionBudget
from policies.kube.objects.workloads import Replicated

_Label: TypeAlias = tuple[str, str] | None


def budgets_of(labels: Mapping[str, str], facts: Facts) -> Iterator[PodDisruptionBudget]:
    """The budgets of the namespace that select pods with these labels, those of one label by name."""
    budgets = facts.objects(PodDisruptionBudget)
    if budgets:
        for label in (None, *labels.items()):
            for budget in sorted(budgets.by(BY_LABEL, label), key=lambda each: each.name):
                if budget.selects(labels):
                    yield budget


def workloads_of(selector: LabelSelector, facts: Facts) -> Iterator[tuple[Json, Replicated]]:
    """The known workloads of the namespace whose pods a selector selects, as JSON and as a type."""
    workloads = facts.objects(Replicated)
    if workloads:
        for obj in with_labels(selector.match_labels, workloads.listing):
            workload = workloads.typed(obj)
            if selector.matches(workload.spec.template.metadata.labels):
                yield obj, workload


def _label_of(budget: PodDisruptionBudget) -> Iterator[_Label]:
    """One label of a budget's selector; None if it has no labels."""
    selector = budget.spec.selector
    yield next(iter(selector.match_labels.items()), None) if selector is not None else None


BY_LABEL: Final = TypedIndex(PodDisruptionBudget, _label_of)
"""The budgets by one label of their selectors."""
