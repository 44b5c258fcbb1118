"""Ratcheting: an update is refused only for hazards that it adds, so that running workloads go on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from policies.containers.commands import ReviewBudget
from policies.core.contracts import Rule
from policies.core.finding import Certainty, Finding
from policies.core.mode import Mode
from policies.core.target import PodTemplate, Target
from policies.kube.field_paths import named, value_at
from policies.kube.json import Json, dig, mapping, text
from webhook.admission.accounts import owner_behind
from webhook.admission.bounds import bounded
from webhook.admission.configuration import Config
from webhook.admission.context import Context
from webhook.admission.decision import Change, Crash, Result, harmless
from webhook.admission.envelope import Request
from webhook.admission.mutation import Projection, project
from webhook.admission.patch import same
from webhook.admission.validation import findings


def never_refused(request: Request, config: Config) -> str:
    """Why nothing about a request is refused, since that would stop what already runs; empty if it may be."""
    owner = owner_behind(request, config.webhook.controllers)
    if owner is not None:
        return f"it belongs to a {text(owner, 'kind')[:63]}, and its replacement is never refused"
    if request.operation == "UPDATE" and same(_substance(request.old_object), _substance(request.object)):
        return "the update leaves the spec as it was"
    return ""


class Before:
    """An object before its update, looked at where it is asked for, and once."""

    def __init__(self, old: Json, context: Context, allowed: ReviewBudget) -> None:
        self.old, self._context, self._allowed = old, context, allowed

    @cached_property
    def projection(self) -> Projection | None:
        """It as judged; None where it is too much to be looked at."""
        bounds = bounded(self.old, self._context.config.workloads, self._allowed)
        return None if bounds.undecided else project(self.old, bounds.templates, self._context)


def before(request: Request, context: Context, allowed: ReviewBudget) -> Before | None:
    """The object before an update; None if there was none."""
    if request.operation != "UPDATE" or request.old_object is None:
        return None
    return Before(request.old_object, context, allowed)


def ratchet(
    results: Sequence[Result],
    crashes: Sequence[Crash],
    request: Request,
    target: Target,
    context: Context,
    earlier: Before | None,
) -> tuple[list[Result], list[Crash]]:
    """Warn where a refusal would stop what already runs: owned objects and old findings."""
    why = never_refused(request, context.config)
    if why:
        return warned_about(results, why), [harmless(crash) for crash in crashes]
    if earlier is None:
        return list(results), list(crashes)
    if earlier.projection is None:
        unknown = "what it was before is too much to be compared"
        return warned_about(results, unknown), [harmless(crash) for crash in crashes]
    found, crashed = findings(earlier.projection.target, context)
    known = _Earlier(earlier.old, found)
    kept: list[Result] = []
    for result in results:
        place = (result.rule, named(target.obj, result.finding.path))
        is_old = known.excuses(place, result.finding, value_at(request.object, result.finding.path))
        kept += warned_about([result], "it was there before this update") if is_old else [result]
    ids = {crash.id for crash in crashed}
    return kept, [harmless(crash) if crash.id in ids else crash for crash in crashes]


def marked_known(projection: Projection, templates: Sequence[PodTemplate], earlier: Before) -> list[Change]:
    """The changes of an update's pods, each with what of it the pods got before."""
    changes, obj = projection.changes, projection.target.obj
    if not changes:
        return []
    if all(_stayed(template, earlier.old, obj) for template in templates):
        former = changes
    else:
        former = earlier.projection.changes if earlier.projection is not None else ()
    said = {(change.policy, change.template, change.mode): change.why for change in former}
    return [
        replace(
            change,
            known=frozenset(
                (each.path, each.why) for each in said.get((change.policy, change.template, change.mode), ())
            ),
        )
        for change in changes
    ]


def _stayed(template: PodTemplate, old: Json, new: Json) -> bool:
    """Whether an update leaves a pod template, and the metadata of its pods, as they were."""
    if not same(dig(old, *template.steps), dig(new, *template.steps)):
        return False
    inherits = template.metadata_path == "metadata"
    return not inherits or all(
        same(mapping(old, "metadata", key), mapping(new, "metadata", key))
        for key in ("labels", "annotations")
    )


Place = tuple[str, tuple[str, ...]]
"""A rule, and a field path with the names of list elements in place of their indices."""


class _Earlier:
    """The findings in an object before an update."""

    def __init__(self, old: Json, found: Iterable[tuple[Rule, Finding]]) -> None:
        self._old = old
        self._there: dict[Place, Finding] = {}
        self._said: dict[tuple[Place, str], Certainty] = {}
        for rule, finding in found:
            place = (rule.id, named(old, finding.path))
            if place not in self._there or _surer(finding.certainty, self._there[place].certainty):
                self._there[place] = finding
            said = (place, finding.message)
            if said not in self._said or _surer(finding.certainty, self._said[said]):
                self._said[said] = finding.certainty

    def excuses(self, place: Place, finding: Finding, value: Any) -> bool:
        """Whether a finding was there before: the same words, or another about the same value.

        A suspected finding does not excuse a certain one.
        """
        said = self._said.get((place, finding.message))
        if said is not None and not _surer(finding.certainty, said):
            return True
        there = self._there.get(place)
        return (
            there is not None
            and not _surer(finding.certainty, there.certainty)
            and same(value_at(self._old, there.path), value)
        )


def _surer(certainty: Certainty, other: Certainty) -> bool:
    return _DOUBTS.index(certainty) < _DOUBTS.index(other)


_DOUBTS: Final = (Certainty.CERTAIN, Certainty.LIKELY, Certainty.UNDECIDED)


def warned_about(results: Sequence[Result], why: str) -> list[Result]:
    """The results, those that would refuse turned into warnings."""
    return [replace(v, mode=Mode.WARN, ratcheted=why) if v.denies else v for v in results]


def _substance(obj: Json | None) -> Json:
    """An object without what an update of metadata, status or scale changes."""
    rest = {key: value for key, value in (obj or {}).items() if key not in ("metadata", "status")}
    if "replicas" in mapping(rest, "spec"):
        rest["spec"] = {key: value for key, value in rest["spec"].items() if key != "replicas"}
    return rest
