"""Applying mutators to an object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct

from policies.core import registry
from policies.core.annotations import EXEMPT
from policies.core.contracts import Mutator
from policies.core.finding import Finding, Mode
from policies.core.reasons import Reasons
from policies.kube.group_kinds import GroupKind
from policies.kube.json import Json
from policies.kube.metadata import annotations_of
from webhook.admission.configuration import Effective
from webhook.admission.decision import Change, Crash, Result, crash_from, with_short_texts
from webhook.admission.exemptions import Exemptions
from webhook.admission.json_patch import diff
from webhook.admission.review import Context


def mutators_of(kind: GroupKind, operation: str = "CREATE") -> tuple[Mutator[Any], ...]:
    """The mutators that change objects of a kind when they are created or updated, in their order."""
    return _of_kind(registry.mutators, kind, operation == "CREATE")


@lru_cache(maxsize=256)
def _of_kind(
    mutators: Callable[[], Mapping[str, Mutator[Any]]], kind: GroupKind, created: bool
) -> tuple[Mutator[Any], ...]:
    return tuple(
        each
        for each in mutators().values()
        if each.mutate is not None and kind in (each.kinds if created else each.on_update)
    )


class Folded(Struct, frozen=True):
    """An object after its mutators."""

    object: Json
    """With the changes of those in mode enforce."""
    changes: tuple[Change, ...]
    results: tuple[Result, ...]
    """Their advice, and the exemptions from them."""
    crashes: tuple[Crash, ...]
    notes: tuple[str, ...]
    """About exemptions that don't count."""


def fold(obj: Json, mutators: Iterable[Mutator[Any]], context: Context) -> Folded:
    """The object after the mutators that are in force for it, applied one after the other."""
    effective, facts = context.effective, context.facts
    exemptions = Exemptions.read(annotations_of(obj), context.config, context.namespace)
    current, changes, results, crashes = obj, [], [], []
    for mutator in mutators:
        mode = effective.mutator_mode(mutator)
        if mode is Mode.OFF or mutator.mutate is None:
            continue
        if mutator.id in exemptions.reasons:
            results.append(_exempted(mutator.id, exemptions.reasons[mutator.id]))
            continue
        settings = facts.settings(mutator.settings)
        try:
            reasons = Reasons(mutator.id)
            after = mutator.mutate(current, settings, facts, reasons)
            patch = diff(current, after) if after is not current else ()
            advice = list(mutator.advise(after, settings, facts)) if mutator.advise else []
        except Exception as error:
            crashes.append(crash_from(mutator.id, error))
            continue
        if patch:
            changes.append(Change(mutator.id, mode, patch, current, reasons=reasons))
            current = after if mode is Mode.ENFORCE else current
        if advice:
            results += [
                Result(mutator.id, with_short_texts(finding), mode.at_most(Mode.WARN))
                for finding in advice
                if not _reported_by_a_rule(finding, effective)
            ]
    return Folded(current, tuple(changes), tuple(results), tuple(crashes), exemptions.notes)


def _reported_by_a_rule(finding: Finding, effective: Effective) -> bool:
    rule = registry.rules().get(finding.covered_by)
    return rule is not None and effective.rule_mode(rule, finding.certainty).strength >= Mode.WARN.strength


def _exempted(policy_id: str, reason: str) -> Result:
    path = f"metadata.annotations[{EXEMPT}]"
    return Result(policy_id, Finding(path, "The policy was not applied.", ""), Mode.AUDIT, exempted=reason)
