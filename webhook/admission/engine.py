"""The decision, which the server and the command line share: pure functions, no I/O.

`mutate` applies the mutators one after the other; `validate` runs every rule over the object as it will be
stored and collects all findings. An exception in a mutator or rule does not affect the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from policies.core.completing import Base
from policies.core.facts import Cluster, WholeObjects
from policies.core.mode import Mode
from policies.core.pod_view import PodViews
from policies.kube.field_paths import scopes
from policies.kube.group_kinds import POD, kind_of
from policies.kube.metadata import annotations_of
from webhook.admission.bounds import allowance, bounded, most_important
from webhook.admission.changed_annotation import annotated
from webhook.admission.configuration import Config
from webhook.admission.context import Context
from webhook.admission.decision import Decision, Result, not_denying
from webhook.admission.envelope import Request
from webhook.admission.exemptions import may_exempt
from webhook.admission.json_patch import diff
from webhook.admission.misspelt_annotations import misspelt_annotations
from webhook.admission.mutation import fold, mutators_of
from webhook.admission.projection import project
from webhook.admission.ratcheting import OldObject, as_warnings, ratchet, with_known_reasons
from webhook.admission.replacements import owner_behind
from webhook.admission.scope import in_scope, left_alone
from webhook.admission.validation import exemption_reason, exemptions_of, findings


def decide(request: Request, config: Config, cluster: Cluster) -> Decision:
    """`mutate`, then `validate` with the mutated object, as the API server calls them."""
    mutated = mutate(request, config, cluster)
    judged = validate(replace(request, object=mutated.object), config, cluster)
    return replace(
        judged,
        patch=mutated.patch,
        changes=(*mutated.changes, *judged.changes),
        results=(*mutated.results, *judged.results),
        crashes=(*mutated.crashes, *judged.crashes),
        notes=tuple(dict.fromkeys((*mutated.notes, *judged.notes))),
    )


def mutate(request: Request, config: Config, cluster: Cluster) -> Decision:
    """The object after all mutators in force for it."""
    obj = request.object or {}
    if not in_scope(request, config):
        return Decision(obj)
    created, kind = request.operation == "CREATE", kind_of(obj)
    mutators = [each for each in mutators_of(obj) if created or kind in each.on_update]
    if not mutators:
        return Decision(obj)
    owned = owner_behind(request, config.webhook.controllers) is not None
    bounds = bounded(obj, config.workloads, allowance())
    if bounds.undecided:
        return Decision(obj, notes=bounds.undecided, owned=owned)
    views = PodViews(template.view for template in bounds.templates)
    folded = fold(obj, mutators, Context.of(obj, request.namespace, config, cluster, views))
    results, notes = most_important(folded.results, folded.notes)
    final = folded.object
    if kind == POD and config.webhook.changes.annotation and final is not obj:
        added = (each.why for each in folded.changes if each.mode is Mode.ENFORCE)
        final = annotated(final, added, config.digest)
    return Decision(
        final,
        diff(obj, final),
        folded.changes,
        results,
        folded.crashes,
        notes,
        owned=owned,
        lists_changes=config.webhook.changes.warnings,
    )


def validate(request: Request, config: Config, cluster: Cluster) -> Decision:
    """All findings about the object, each with its mode."""
    obj = request.object or {}
    if not in_scope(request, config):
        return Decision(obj, coverage=left_alone(request, config))
    allowed = allowance()
    find = cluster.named if isinstance(cluster, WholeObjects) else None
    bounds = bounded(obj, config.workloads, allowed, find, request.namespace)
    covered = bounds.coverage(obj, config.workloads)
    owned = owner_behind(request, config.webhook.controllers) is not None
    if not bounds.whole:
        return Decision(
            obj,
            notes=bounds.undecided,
            owned=owned,
            docs_url=config.webhook.docs_url,
            coverage=covered,
        )
    views = PodViews(template.view for template in bounds.templates)
    context = Context.of(obj, request.namespace, config, cluster, views)
    projection = project(obj, bounds.templates, context)
    found, crashes = findings(projection.target, context, lambda base: _found_in(base, context))
    exemptions = exemptions_of(obj, projection.target, config, context.namespace)
    results = [
        Result(
            rule.id,
            finding,
            mode,
            exempted=exemption_reason(rule, finding, exemptions),
            exemptable=may_exempt(rule.id, config, context.namespace),
            family=rule.document.family,
            by_shape=bool(covered.by_shape),
        )
        for rule, finding in found
        if (mode := context.effective.rule_mode(rule, finding.certainty)) is not Mode.OFF
    ]
    exempted = {rule for known in exemptions.get("", ()) for rule in known.reasons}
    crashes = [not_denying(crash) if crash.id in exempted else crash for crash in crashes]
    old = OldObject.of(request, context, allowed)
    if bounds.undecided:
        results, crashes = as_warnings(results, "part of it is not decided"), [*map(not_denying, crashes)]
    elif any(result.denies for result in results) or any(crash.denies for crash in crashes):
        results, crashes = ratchet(results, crashes, request, projection.target, context, old)
    written = (obj, *(template.pod for template in projection.target.templates))
    about_annotations = chain(
        (note for known in chain(*exemptions.values()) for note in known.notes),
        *(misspelt_annotations(annotations_of(each)) for each in written),
    )
    kept, notes = most_important(
        (*results, *_not_reported(projection.advice, results)),
        (*bounds.undecided, *dict.fromkeys(about_annotations)),
    )
    changes, lists_changes = projection.changes, config.webhook.changes.warnings and not owned
    if lists_changes and old is not None:
        changes = tuple(with_known_reasons(projection, bounds.templates, old))
    return Decision(
        obj,
        changes=changes,
        results=kept,
        crashes=(*projection.crashes, *crashes),
        notes=notes,
        projected=projection.obj if projection.obj is not obj else None,
        owned=owned,
        lists_changes=lists_changes,
        docs_url=config.webhook.docs_url,
        coverage=covered,
    )


def _found_in(base: Base, context: Context) -> frozenset[tuple[str, str]]:
    """Rule and field path of the findings in an object that completes the pods of another."""
    templates = bounded(base.obj, context.config.workloads, allowance()).templates
    found, _ = findings(project(base.obj, templates, context).target, context)
    return frozenset((rule.id, finding.path) for rule, finding in found)


def _not_reported(advice: Sequence[Result], results: Sequence[Result]) -> list[Result]:
    """The advice about fields that no rule reports."""
    reported = {scope for result in results for scope in scopes(result.finding.path)}
    return [each for each in advice if each.finding.path not in reported]
