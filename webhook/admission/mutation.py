"""Folding mutators over an object, and over the pods that a workload will make of its templates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

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
from webhook.admission.bounds import bounded_words
from webhook.admission.configuration import Effective
from webhook.admission.context import Context
from webhook.admission.decision import Change, Crash, Decision, Result, crash_of
from webhook.admission.exemptions import Exemptions
from webhook.admission.patch import diff


def mutators_of(obj: Json) -> tuple[Mutator[Any], ...]:
    """The mutators that look at an object of this kind, in the order in which they are folded over it."""
    return _by_kind(registry.mutators).get(kind_of(obj), ())


@lru_cache(maxsize=16)
def _by_kind(
    mutators: Callable[[], Mapping[str, Mutator[Any]]],
) -> Mapping[GroupKind, tuple[Mutator[Any], ...]]:
    every = [each for each in mutators().values() if each.mutate is not None]
    kinds = dict.fromkeys(kind for each in every for kind in each.kinds)
    return {kind: tuple(each for each in every if kind in each.kinds) for kind in kinds}


def fold(obj: Json, mutators: Iterable[Mutator[Any]], context: Context) -> Decision:
    """The object after the mutators that are in force for it, each seeing the one before."""
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
            crashes.append(crash_of(mutator.id, error))
            continue
        if patch:
            changes.append(Change(mutator.id, mode, patch, current, why=why))
            current = after if mode is Mode.ENFORCE else current
        results += [
            Result(mutator.id, bounded_words(finding), mode.at_most(Mode.WARN))
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


class Folding(Protocol):
    """What becomes of the pods of a template: their pod, folded, and the look at it."""

    def __call__(self, template: PodTemplate, context: Context, /) -> tuple[Decision, PodView]: ...


def fold_template(template: PodTemplate, context: Context) -> tuple[Decision, PodView]:
    """The pod of a template after the pod-level mutators that are in force for it."""
    folded = fold(template.pod, mutators_of(template.pod), context.of_pod(template.pod))
    return folded, context.facts.view(folded.object)


@dataclass(frozen=True, slots=True)
class Projection:
    """A workload as judged: its pods as they will be made."""

    target: Target
    """`obj` is the object as sent; its `templates` are the projected ones."""
    obj: Json
    """The object with its pod templates projected; the one sent if no policy changed it."""
    changes: tuple[Change, ...] = ()
    advice: tuple[Result, ...] = ()
    """The policies' findings about the pods; warnings at pods that a controller makes are not seen."""
    crashes: tuple[Crash, ...] = ()


def project(obj: Json, templates: Iterable[PodTemplate], context: Context) -> Projection:
    """Apply the pod-level policies in force to a copy of each of its pod templates that is projected.

    A Pod is judged as it is: its mutations have run before.
    """
    # A cluster may remember that.
    folding: Folding = getattr(context.facts.cluster, "fold", fold_template)
    projected = obj
    judged: list[PodTemplate] = []
    changes: list[Change] = []
    advice: list[Result] = []
    crashes: list[Crash] = []
    for template in templates:
        if template.workload is None or not template.workload.projected or template.container_path:
            judged.append(template)
            continue
        folded, view = folding(template, context)
        if template.by_shape:  # judged as its pods will be; additions to them cannot be promised
            judged.append(template.with_view(context.facts.views.add(view)))
            continue
        if folded.object is not template.pod:
            projected = with_template(projected, template, folded.object)
        judged.append(template.with_view(context.facts.views.add(view)))
        changes += [
            replace(change, template=template.path, why=change.why.placed(template.path_in_object))
            for change in folded.changes
        ]
        if template.base is None:  # else the object that completes the pods is advised about them
            advice += [_at_template(template, result) for result in folded.results]
        crashes += folded.crashes
    target = Target(obj, kind_of(obj), tuple(judged))
    return Projection(target, projected, tuple(changes), tuple(advice), tuple(crashes))


def _at_template(template: PodTemplate, result: Result) -> Result:
    """A finding about a pod, with its path in the workload that the pod is made from."""
    finding = result.finding
    return replace(result, finding=replace(finding, path=template.path_in_object(finding.path)))
