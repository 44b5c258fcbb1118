"""The pods that a workload will create: its templates after the mutators that are in force for pods."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from policies.core.pod_templates import with_template
from policies.core.ray_pods import pod_of_kuberay
from policies.core.target import PodTemplate, Target
from policies.kube.field_paths import scopes
from policies.kube.group_kinds import POD, kind_of
from policies.kube.json import Json
from webhook.admission.decision import Change, Crash, Result
from webhook.admission.mutators import Folded, fold, mutators_of
from webhook.admission.review import Context


class Projection(Struct, frozen=True):
    """A workload with its pods as they will be created."""

    target: Target
    """`obj` is the original object; `templates` are the projected ones."""
    obj: Json
    """The object with projected pod templates; the original object if no mutator changed them."""
    changes: tuple[Change, ...] = ()
    advice: tuple[Result, ...] = ()
    """The mutators' findings about the pods. Nobody sees warnings about pods that a controller creates."""
    crashes: tuple[Crash, ...] = ()

    def advice_beyond(self, results: Sequence[Result]) -> list[Result]:
        """The advice about fields that no rule reports."""
        if not self.advice:
            return []
        reported = {scope for result in results for scope in scopes(result.finding.path)}
        return [each for each in self.advice if each.finding.path not in reported]


def project(obj: Json, templates: Iterable[PodTemplate], context: Context) -> Projection:
    """Apply the mutators in force to a copy of each pod template.

    A Pod is not projected: `mutate` has changed it before.
    """
    projected = obj
    judged: list[PodTemplate] = []
    changes: list[Change] = []
    advice: list[Result] = []
    crashes: list[Crash] = []
    for template in templates:
        if not template.is_projected:
            judged.append(template)
            made = pod_of_kuberay(obj, template)
            if made is not None:  # rules read the template as it is written, without what KubeRay adds
                folded = _folded(made, context)
                changes += _at(template, folded)
                crashes += folded.crashes
            continue
        folded = _folded(template.pod, context)
        judged.append(template.with_view(context.facts.view(folded.object)))
        if template.by_shape or template.is_merged_later:  # the pods may differ, so nothing is promised
            continue
        if folded.object is not template.pod:
            projected = with_template(projected, template, folded.object)
        changes += _at(template, folded)
        if template.base is None:  # else the review of the object that completes the pods reports it
            advice += [_at_template(template, result) for result in folded.results]
        crashes += folded.crashes
    target = Target(obj, kind_of(obj), tuple(judged))
    return Projection(target, projected, tuple(changes), tuple(advice), tuple(crashes))


def _folded(pod: Json, context: Context) -> Folded:
    """A pod after the mutators that are in force for it."""
    return fold(pod, mutators_of(POD), context.of_pod(pod))


def _at(template: PodTemplate, folded: Folded) -> list[Change]:
    """The changes of a pod, with their paths in the workload."""
    return [
        dataclasses.replace(
            change, template=template.path, reasons=change.reasons.placed(template.path_in_object)
        )
        for change in folded.changes
    ]


def _at_template(template: PodTemplate, result: Result) -> Result:
    """A finding about a pod, with its path in the workload."""
    finding = result.finding
    return replace(result, finding=replace(finding, path=template.path_in_object(finding.path)))
