"""The decision, which the server and the command line share: pure functions, no I/O.

The steps of a review in their order; the table of the package has all modules:

| step | module |
|---|---|
| is the object reviewed? | `scope` |
| which parts of it are read, on which budget? | `bounds` |
| which fields are added? (`mutate`) | `mutators`, `changed_annotation`, `json_patch` |
| how will a workload's pods look? (`validate`) | `projection` |
| what is wrong with them, and who has exempted it? | `rules`, `exemptions` |
| what is wrong with the objects that its controller applies? | `applied` |
| what was there before, or must not be refused? | `ratcheting`, `controllers` |
| the answer | `decision`, from which `messages` makes texts, and `answer` bytes |
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from policies.core.finding import Mode
from policies.kube.group_kinds import POD
from webhook.admission.applied import applied_results
from webhook.admission.changed_annotation import annotated
from webhook.admission.coverage import not_reviewed
from webhook.admission.decision import Decision, most_important
from webhook.admission.json_patch import diff
from webhook.admission.mutators import fold, mutators_of
from webhook.admission.projection import project
from webhook.admission.ratcheting import OldObject, known_changes, ratchet
from webhook.admission.review import Review
from webhook.admission.rules import judge, notes_about_annotations
from webhook.admission.scope import out_of_scope

Decide = Callable[[Review], Decision]
"""`mutate` or `validate`."""


def decide(review: Review) -> Decision:
    """`mutate`, then `validate` with the mutated object, as the API server calls them."""
    mutated = mutate(review)
    judged = validate(review.of(mutated.object))
    return replace(
        judged,
        patch=mutated.patch,
        changes=(*mutated.changes, *judged.changes),
        results=(*mutated.results, *judged.results),
        crashes=(*mutated.crashes, *judged.crashes),
        notes=tuple(dict.fromkeys((*mutated.notes, *judged.notes))),
    )


def mutate(review: Review) -> Decision:
    """The object after all mutators in force for it."""
    obj, config = review.object, review.config
    mutators = mutators_of(review.kind, review.request.operation)
    if not mutators or out_of_scope(review.request, config):
        return Decision(obj)
    if review.bounds.left_out:
        return Decision(obj, notes=review.bounds.left_out, owned=review.owned)
    folded = fold(obj, mutators, review.context)
    results, notes = most_important(folded.results, folded.notes)
    final = folded.object
    if review.kind == POD and config.webhook.changes.annotation and final is not obj:
        added = [each.reasons for each in folded.changes if each.mode is Mode.ENFORCE]
        final = annotated(final, added, config.digest)
    return Decision(
        final,
        diff(obj, final),
        folded.changes,
        results,
        folded.crashes,
        notes,
        owned=review.owned,
        lists_changes=review.lists_changes,
        docs_url=config.webhook.docs_url,
    )


def validate(review: Review) -> Decision:
    """All findings about the object, each with its mode."""
    obj, config = review.object, review.config
    if why := out_of_scope(review.request, config):
        return Decision(obj, coverage=not_reviewed(review.kind, why))
    bounds = review.bounds
    covered = bounds.coverage(obj, config.workloads)
    decision = Decision(obj, owned=review.owned, docs_url=config.webhook.docs_url, coverage=covered)
    if not bounds.any_read:
        return replace(decision, notes=bounds.left_out)
    projection = project(obj, bounds.templates, review.context)
    judged = judge(projection, review)
    old = OldObject.of(review)
    results, crashes = ratchet(judged.results, judged.crashes, review, old)
    workload = config.workloads.get(review.kind)
    if workload is not None and workload.applied and not review.owned:
        applied = applied_results(review, workload, results)
        results = (*results, *applied.results)
        decision = replace(decision, coverage=applied.coverage(covered))
    kept, notes = most_important(
        (*results, *projection.advice_beyond(results)),
        (*bounds.left_out, *notes_about_annotations(projection.target, judged.exemptions)),
    )
    return replace(
        decision,
        changes=known_changes(projection, bounds.templates, old)
        if review.lists_changes
        else projection.changes,
        results=kept,
        crashes=(*projection.crashes, *crashes),
        notes=notes,
        projected=projection.obj if projection.obj is not obj else None,
        lists_changes=review.lists_changes,
    )
