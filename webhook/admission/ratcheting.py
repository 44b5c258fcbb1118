"""Ratcheting: an update is refused only for hazards that it adds, so that running workloads go on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Final

from msgspec.structs import replace

from policies.core.contracts import Rule
from policies.core.finding import Certainty, Finding, Mode
from policies.core.target import PodTemplate
from policies.kube.field_paths import named, value_at
from policies.kube.json import Json, dig, mapping, text
from webhook.admission.bounds import bounded
from webhook.admission.configuration import Config
from webhook.admission.controllers import owner_behind
from webhook.admission.decision import Change, Crash, Result, not_denying
from webhook.admission.envelope import Request
from webhook.admission.json_patch import same
from webhook.admission.projection import Projection, project
from webhook.admission.review import Review
from webhook.admission.rules import findings


def never_refused(request: Request, config: Config) -> str:
    """Why a request is never refused, because that would stop a running workload; empty if it may be."""
    owner = owner_behind(request, config.webhook.controllers)
    if owner is not None:
        return f"it belongs to a {text(owner, 'kind')[:63]}, and its replacement is never refused"
    if request.operation == "UPDATE" and same(_spec_of(request.old_object), _spec_of(request.object)):
        return "the update leaves the spec as it was"
    return ""


class OldObject:
    """The object before an update. It is reviewed only if necessary."""

    def __init__(self, obj: Json, review: Review) -> None:
        self.obj, self._review = obj, review

    @classmethod
    def of(cls, review: Review) -> OldObject | None:
        obj = review.request.old_object
        return None if review.request.operation != "UPDATE" or obj is None else cls(obj, review)

    @cached_property
    def projection(self) -> Projection | None:
        """None if the object exceeds the budget."""
        review = self._review
        bounds = bounded(self.obj, review.config.workloads, review.budget)
        return None if bounds.left_out else project(self.obj, bounds.templates, review.context)


def ratchet(
    results: Sequence[Result], crashes: Sequence[Crash], review: Review, old: OldObject | None
) -> tuple[Sequence[Result], Sequence[Crash]]:
    """Turn refusals into warnings if they would stop a running workload (owned objects and old findings), or
    if a part of the object isn't reviewed."""
    if not any(result.denies for result in results) and not any(crash.denies for crash in crashes):
        return results, crashes
    why = never_refused(review.request, review.config)
    if review.bounds.left_out:
        why = "part of it isn't reviewed"
    elif not why and old is not None and old.projection is None:
        why = "the previous version is too large to compare"
    if why:
        return _as_warnings(results, why), [not_denying(crash) for crash in crashes]
    if old is None or old.projection is None:
        return results, crashes
    found, crashed = findings(old.projection.target, review.context)
    known = _OldFindings(old.obj, found)
    kept: list[Result] = []
    for result in results:
        place = (result.rule, named(review.object, result.finding.path))
        value = value_at(review.object, result.finding.path)
        is_old = known.include(place, result.finding, value)
        kept += _as_warnings([result], "the object already had it before this update") if is_old else [result]
    ids = {crash.id for crash in crashed}
    return kept, [not_denying(crash) if crash.id in ids else crash for crash in crashes]


def known_changes(
    projection: Projection, templates: Sequence[PodTemplate], old: OldObject | None
) -> tuple[Change, ...]:
    """The changes of the pods; of an update with the reasons that the pods had before."""
    changes, obj = projection.changes, projection.target.obj
    if not changes or old is None:
        return changes
    if all(_unchanged(template, old.obj, obj) for template in templates):
        former = changes
    else:
        former = old.projection.changes if old.projection is not None else ()
    reasons = {(change.mutator, change.template, change.mode): change.reasons for change in former}
    return tuple(
        dataclasses.replace(
            change,
            known=frozenset(
                (each.path, each.why)
                for each in reasons.get((change.mutator, change.template, change.mode), ())
            ),
        )
        for change in changes
    )


def _unchanged(template: PodTemplate, old: Json, new: Json) -> bool:
    """Whether an update does not change a pod template and the metadata of its pods."""
    if not same(dig(old, *template.steps), dig(new, *template.steps)):
        return False
    inherits = template.metadata_path == "metadata"
    return not inherits or all(
        same(mapping(old, "metadata", key), mapping(new, "metadata", key))
        for key in ("labels", "annotations")
    )


Place = tuple[str, tuple[str, ...]]
"""A rule, and a field path with the names of list elements in place of their indices."""


class _OldFindings:
    """The findings in an object before an update: at each place the most certain one, and that of each
    text."""

    def __init__(self, old: Json, found: Iterable[tuple[Rule, Finding]]) -> None:
        self._old = old
        self._found: dict[tuple[Place, str | None], Finding] = {}
        for rule, finding in found:
            place = (rule.id, named(old, finding.path))
            for key in ((place, None), (place, finding.message)):
                if key not in self._found or _surer(finding.certainty, self._found[key].certainty):
                    self._found[key] = finding

    def include(self, place: Place, finding: Finding, value: Any) -> bool:
        """Whether one of them has the same text, or is about the same value, and is at least as certain."""
        equal = self._found.get((place, finding.message))
        if equal is not None and not _surer(finding.certainty, equal.certainty):
            return True
        old = self._found.get((place, None))
        return (
            old is not None
            and not _surer(finding.certainty, old.certainty)
            and same(value_at(self._old, old.path), value)
        )


def _surer(certainty: Certainty, other: Certainty) -> bool:
    return _DOUBTS.index(certainty) < _DOUBTS.index(other)


_DOUBTS: Final = tuple(Certainty)


def _as_warnings(results: Sequence[Result], why: str) -> list[Result]:
    """The results, with refusals turned into warnings."""
    return [replace(v, mode=Mode.WARN, ratcheted=why) if v.denies else v for v in results]


def _spec_of(obj: Json | None) -> Json:
    """An object without metadata, status and `spec.replicas`."""
    rest = {key: value for key, value in (obj or {}).items() if key not in ("metadata", "status")}
    if "replicas" in mapping(rest, "spec"):
        rest["spec"] = {key: value for key, value in rest["spec"].items() if key != "replicas"}
    return rest
