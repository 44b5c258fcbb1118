"""The findings in objects that the reviewed object's controller applies: they warn at most.

Such an object is judged as if it were applied now. Where the outer object's pods are read in it, as in an
AppWrapper, only the rules judge it that do not judge the outer object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from policies.commands import BudgetSpent
from policies.core import registry
from policies.core.contracts import Rule
from policies.core.facts import Cluster, NoCluster, WholeObjects
from policies.core.finding import Finding, Mode
from policies.core.listing import Listing
from policies.core.resources import Resource
from policies.core.workloads import Workload
from policies.kube.group_kinds import GroupKind, kind_of
from policies.kube.json import Json, text
from webhook.admission.applied_objects import MAX_OBJECTS, AppliedObject, applied_objects
from webhook.admission.bounds import bounded, is_known
from webhook.admission.coverage import NO_TEMPLATE, Coverage, Reading, Unread
from webhook.admission.decision import Result, with_short_texts
from webhook.admission.exemptions import exemption, may_exempt
from webhook.admission.projection import project
from webhook.admission.review import Context, Review
from webhook.admission.rules import findings

_NOT_ALL: Final = f"not all objects are read: at most {MAX_OBJECTS}, and no lists"
_UNKNOWN_VALUES: Final = "its placeholders have values that nobody knows yet"


class _Later(Struct, frozen=True):
    """A cluster at a later time. Until then earlier steps may create other objects, but namespaces are what
    they were."""

    cluster: Cluster

    def listing(self, resource: Resource, namespace: str | None = None) -> Listing | None:
        return self.cluster.listing(resource, namespace) if resource is Resource.NAMESPACES else None


class AppliedResults(Struct, frozen=True):
    """The results about applied objects."""

    results: tuple[Result, ...] = ()
    read: Mapping[str, str] = {}
    """The field paths of the objects that were read, each with what of it was not, or an empty text."""

    def coverage(self, known: Coverage) -> Coverage:
        """The coverage of the outer object, with what was read of these."""
        if not self.read:
            return known
        left = (each for each in known.unread if each.path not in self.read and each != NO_TEMPLATE)
        unread = (*left, *(Unread(path, why) for path, why in self.read.items() if why))
        return replace(known, unread=unread, reading=Reading.PARTLY if unread else Reading.REVIEWED)


def applied_results(review: Review, workload: Workload, reported: Sequence[Result]) -> AppliedResults:
    """The findings in the objects that the controller of a kind applies, without those of `reported`."""
    known = {(each.rule, each.finding.path) for each in reported}
    results: list[Result] = []
    read: dict[str, str] = {}
    unread: set[str] = set()
    path = ""
    try:
        objects = applied_objects(review.object, workload, review.config.workloads, review.budget.steps.spend)
        for each in objects:
            path = each.path
            found = _judged(each, review, workload) if each.readings else None
            if found is None:
                unread.add(path)
                if not (each.readings or each.how.as_text):
                    read[path] = ""  # the first of those beyond the limit
                continue
            results += [it for it in found if (it.rule, it.finding.path) not in known]
            why = _UNKNOWN_VALUES if each.placeholders else ""
            read[path] = read.get(path) or why
    except BudgetSpent:
        unread.add(path)  # and the rest of them, which `read` lacks
    return AppliedResults(tuple(results), {at: _NOT_ALL if at in unread else why for at, why in read.items()})


def _judged(applied: AppliedObject, review: Review, workload: Workload) -> list[Result] | None:
    """The findings that all readings of an object share; None if one can't be decided, or the kind is
    unknown."""
    every = [_findings_in(obj, applied, review, workload) for obj in applied.readings]
    shared: dict[tuple[str, str, str], tuple[Rule, Finding]] = {}
    for number, found in enumerate(every):
        if found is None:
            return None
        placed = {
            (rule.id, finding.path, finding.message): (rule, finding)
            for rule, finding in found
            if not any(map(applied.is_unknown, (finding.message, finding.hint)))
        }
        shared = {key: placed[key] for key in shared if key in placed} if number else placed
    return [
        _result(rule, finding, applied, review)
        for rule, finding in shared.values()
        if not applied.is_unknown_at(finding.path)
    ]


def _findings_in(
    obj: Json, applied: AppliedObject, review: Review, workload: Workload
) -> list[tuple[Rule, Finding]] | None:
    """The findings in one reading of an object; None if it can't be decided."""
    config, kind = review.config, kind_of(obj)
    namespace = text(obj, "metadata", "namespace") or review.request.namespace
    known = _cluster_of(applied, review)
    find = known.named if isinstance(known, WholeObjects) else None
    if not is_known(kind, config.workloads):
        return None
    bounds = bounded(obj, config.workloads, review.budget, find, namespace)
    if bounds.left_out:
        return None
    context = Context.of(obj, namespace, config, known)
    projection = project(obj, bounds.templates, context)
    found, _ = findings(projection.target, context)
    outer = _rules_of(review.kind) if workload.objects else frozenset()
    return [
        (rule, finding)
        for rule, finding in found
        if not (rule.at_once or rule.id in outer or rule.id in applied.how.without)
    ]


def _cluster_of(applied: AppliedObject, review: Review) -> Cluster:
    """What is known of the cluster in which an object is applied, at that time."""
    if applied.how.elsewhere:
        return NoCluster()
    return _Later(review.cluster) if applied.how.as_text else review.cluster


@lru_cache(maxsize=64)
def _rules_of(kind: GroupKind) -> frozenset[str]:
    """The rules that judge objects of a kind which has pods."""
    return frozenset(rule.id for rule in registry.rules().values() if rule.applies(kind, has_pods=True))


def _result(rule: Rule, finding: Finding, applied: AppliedObject, review: Review) -> Result:
    """A finding in an applied object, at its place in the outer object."""
    context, config, how = review.context, review.config, applied.how
    mode = context.effective.rule_mode(rule, finding.certainty.in_doubt()).at_most(Mode.WARN)
    if how.as_text:
        path = applied.path
        message = f"{applied.title}, {applied.written(finding.path)}: {finding.message}"
    else:
        path, message = f"{applied.path}.{finding.path}", finding.message
    placed = replace(finding, path=path, message=message, certainty=finding.certainty.in_doubt())
    return Result(
        rule.id,
        with_short_texts(placed),
        mode,
        exempted=_exemption(rule, applied, review),
        exemptable=may_exempt(rule.id, config, context.namespace),
        family=rule.document.family,
    )


def _exemption(rule: Rule, applied: AppliedObject, review: Review) -> str | None:
    """The reason of an exemption from a rule, of the applied object or of the outer one."""
    config, namespace = review.config, review.context.namespace
    own = exemption(rule.id, applied.obj, config, namespace)
    return exemption(rule.id, review.object, config, namespace) if own is None else own
