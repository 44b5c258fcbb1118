"""Applying mutators to an object, and to the pods that a workload will create from its templates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from policies.core import registry
from policies.core.annotations import EXEMPT
from policies.core.contracts import Mutator
from policies.core.finding import Finding
from policies.core.mode import Mode
from policies.core.pod_view import PodView
from policies.core.reasons import Reasons
from policies.core.target import PodTemplate, Target, with_template
from policies.kube.group_kinds import GroupKind, kind_of
from policies.kube.json import Json
from policies.kube.metadata import annotations_of
from webhook.admission.bounds import with_short_texts
from webhook.admission.configuration import Effective
from webhook.admission.context import Context
from webhook.admission.decision import Change, Crash, Decision, Result, crash_from
from webhook.admission.exemptions import Exemptions
from webhook.admission.json_patch import diff


def mutators_of(obj: Json) -> tuple[Mutator[Any], ...]:
    """The mutators for objects of this kind, in their order."""
    return _by_kind(registry.mutators).get(kind_of(obj), ())


@lru_cache(maxsize=16)
def _by_kind(
    mutators: Callable[[], Mapping[str, Mutator[Any]]],
) -> Mapping[GroupKind, tuple[Mutator[Any], ...]]:
    every = [each for each in mutators().values() if each.mutate is not None]
    kinds = dict.fromkeys(kind for each in every for kind in each.kinds)
    return {kind: tuple(each for each in every if kind in each.kinds) for kind in kinds}


def fold(obj: Json, mutators: Iterable[Mutator[Any]], context: Context) -> Decision:
    """The object after the mutators that are in force for it, applied one after the other."""
    effective, facts = context.effective, context.facts
    exemptions = Exemptions.read(annotations_of(obj), context.config, context.namespace)
    current, changes, results, crashes = obj, [], [], []
    for mutator in mutators:
        mode = effective.policy_mode(mutator)
        if mode is Mode.OFF or mutator.mutate is None:
            continue
        if mutator.id in exemptions.reasons:
            results.append(_exempted(mutator.id, exemptions.reasons[mutator.id]))
            continue
        settings = effective.settings(mutator.settings)
        try:
            why = Reasons(mutator.id)
            after = mutator.mutate(current, settings, facts, why)
            patch = diff(current, after)
            advice = list(mutator.advise(after, settings, facts)) if mutator.advise else []
        except Exception as error:
            crashes.append(crash_from(mutator.id, error))
            continue
        if patch:
            changes.append(Change(mutator.id, mode, patch, current, why=why))
            current = after if mode is Mode.ENFORCE else current
        results += [
            Result(mutator.id, with_short_texts(finding), mode.at_most(Mode.WARN))
            for finding in advice
            if not _reported_by_a_rule(finding, effective)
        ]
    return Decision(current, (), tuple(changes), tuple(results), tuple(crashes), exemptions.notes)


def _reported_by_a_rule(finding: Finding, effective: Effective) -> bool:
    rule = registry.rules().get(finding.covered_by)
    return rule is not None and effective.rule_mode(rule, finding.certainty).strength >= Mode.WARN.strength


def _exempted(policy_id: str, reason: str) -> Result:
    path = f"metadata.annotations[{EXEMPT}]"
    return Result(policy_id, Finding(path, "The policy was not applied.", ""), Mode.AUDIT, exempted=reason)


FoldTemplate = Callable[[PodTemplate, Context], tuple[Decision, PodView]]


def fold_template(template: PodTemplate, context: Context) -> tuple[Decision, PodView]:
    """The pod of a template after the mutators that are in force for it, and its view."""
    folded = fold(template.pod, mutators_of(template.pod), context.of_pod(template.pod))
    return folded, context.facts.view(folded.object)


@dataclass(frozen=True, slots=True)
class Projection:
    """A workload with its pods as they will be created."""

    target: Target
    """`obj` is the original object; `templates` are the projected ones."""
    obj: Json
    """The object with projected pod templates; the original object if no mutator changed them."""
    changes: tuple[Change, ...] = ()
    advice: tuple[Result, ...] = ()
    """The mutators' findings about the pods. Nobody sees warnings about pods that a controller creates."""
    crashes: tuple[Crash, ...] = ()


def project(obj: Json, templates: Iterable[PodTemplate], context: Context) -> Projection:
    """Apply the mutators in force to a copy of each pod template.

    A Pod is not projected: `mutate` has changed it before.
    """
    # The memo's cluster (`webhook.fast_path.folds.Recorder`) remembers results.
    fold_or_recall: FoldTemplate = getattr(context.facts.cluster, "fold", fold_template)
    projected = obj
    judged: list[PodTemplate] = []
    changes: list[Change] = []
    advice: list[Result] = []
    crashes: list[Crash] = []
    for template in templates:
        if template.workload is None or not template.workload.projected or template.container_path:
            judged.append(template)
            continue
        folded, view = fold_or_recall(template, context)
        judged.append(template.with_view(context.facts.views.add(view)))
        if template.by_shape:  # the pods may differ, so the answer promises no additions
            continue
        if folded.object is not template.pod:
            projected = with_template(projected, template, folded.object)
        changes += [
            replace(change, template=template.path, why=change.why.placed(template.path_in_object))
            for change in folded.changes
        ]
        if template.base is None:  # else the review of the object that completes the pods reports it
            advice += [_at_template(template, result) for result in folded.results]
        crashes += folded.crashes
    target = Target(obj, kind_of(obj), tuple(judged))
    return Projection(target, projected, tuple(changes), tuple(advice), tuple(crashes))


def _at_template(template: PodTemplate, result: Result) -> Result:
    """A finding about a pod, with its path in the workload."""
    finding = result.finding
    return replace(result, finding=replace(finding, path=template.path_in_object(finding.path)))
