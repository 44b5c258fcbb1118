"""The one decision that server and command line share: pure, synchronous, no I/O.

`mutate` folds the policies over the object, each seeing the one before; `validate` runs every rule
over the object as it will be stored and collects all findings. A crash in one policy or rule stays
in that policy or rule.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from policies.containers.commands import Allowance
from policies.core import registry
from policies.core.annotations import EXEMPT, POLICY_LABEL
from policies.core.contracts import Family, Mutator, Rule
from policies.core.facts import Cluster, Facts
from policies.core.finding import Certainty, Finding
from policies.core.mode import Mode
from policies.core.target import PodTemplate, Target, with_template
from policies.kube.field_paths import named, scopes, value_at
from policies.kube.group_kinds import kind_of
from policies.kube.json import Json, dig, mapping, text
from policies.kube.metadata import annotations_of, labels_of
from webhook.admission.accounts import is_mirror_pod, owner_behind
from webhook.admission.bounds import allowance, bounded
from webhook.admission.configuration import Config, Effective
from webhook.admission.envelope import Request
from webhook.admission.exemptions import Exemptions, may_exempt
from webhook.admission.patch import Operation, diff, same


@dataclass(frozen=True, slots=True)
class Change:
    """What one mutating policy changed, or would change where its mode is not enforce."""

    policy: str
    mode: Mode
    patch: Sequence[Operation]
    before: Json
    template: str = ""
    """Field path of the pod template that was projected; empty for the object itself."""


@dataclass(frozen=True, slots=True)
class Result:
    """A finding with what is made of it."""

    rule: str
    finding: Finding
    mode: Mode
    exempted: str | None = None
    """The reason given for an exemption that counts."""
    spared: str = ""
    """Why a finding that would be enforced is only warned about."""
    exemptable: bool = True
    """Whether an exemption would count here."""
    family: Family | None = None
    """The family of the rule; None where a mutator says it."""

    @property
    def denies(self) -> bool:
        return self.mode is Mode.ENFORCE and self.exempted is None


@dataclass(frozen=True, slots=True)
class Crash:
    """A policy or rule that failed on this object: a bug of ours, never the user's."""

    id: str
    error: str
    trace: str
    denies: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything that was decided about one object; `webhook.admission.messages` puts it into words."""

    object: Json
    """The object after the mutations that were enforced."""
    patch: Sequence[Operation] = ()
    changes: tuple[Change, ...] = ()
    results: tuple[Result, ...] = ()
    crashes: tuple[Crash, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences about the request itself, such as an exemption that does not count."""
    projected: Json | None = None
    """A workload with its pod templates as the pod-level policies will leave its pods."""
    owned: bool = False
    """Whether a controller made the object, so that no person reads the warnings."""
    docs_url: str = ""

    @property
    def allowed(self) -> bool:
        return not any(result.denies for result in self.results) and not any(c.denies for c in self.crashes)


def in_scope(request: Request, config: Config) -> bool:
    """Whether a request is looked at at all.

    Subresources, dying objects and mirror pods are not.
    """
    if request.object is None or request.subresource or request.operation not in ("CREATE", "UPDATE"):
        return False
    dying = dig(request.object, "metadata", "deletionTimestamp") is not None
    if dying and not (request.operation == "CREATE" and request.username):  # nobody creates what is dying
        return False
    if is_mirror_pod(request):
        return False
    own_policy = labels_of(request.object).get(POLICY_LABEL) == "true"
    return own_policy or config.webhook.namespaces.covers(request.namespace)


def decide(request: Request, config: Config, cluster: Cluster) -> Decision:
    """Both halves in the API server's order: the rules see what the mutations left."""
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


# --- the mutating half ---------------------------------------------------------------------------


def mutate(request: Request, config: Config, cluster: Cluster) -> Decision:
    """The object after all mutating policies that are in force for it."""
    obj = request.object or {}
    if not in_scope(request, config):
        return Decision(obj)
    created, kind = request.operation == "CREATE", kind_of(obj)
    policies = [p for p in _policies(obj) if created or kind in p.on_update]
    if not policies:
        return Decision(obj)
    owned = owner_behind(request, config.webhook.controllers) is not None
    bounds = bounded(obj, config.workloads, allowance())
    if bounds.undecided:
        return Decision(obj, notes=bounds.undecided, owned=owned)
    folded = _fold(obj, policies, config, Facts(request.namespace, cluster))
    results, notes = _foremost(folded.results, folded.notes)
    return replace(folded, patch=diff(obj, folded.object), results=results, notes=notes, owned=owned)


def _policies(obj: Json) -> Iterator[Mutator[Any]]:
    kind = kind_of(obj)
    return (p for p in registry.mutators().values() if p.mutate is not None and kind in p.kinds)


def _fold(obj: Json, policies: Sequence[Mutator[Any]], config: Config, facts: Facts) -> Decision:
    effective = config.effective(obj, facts.namespace, facts.namespace_labels())
    facts = replace(facts, settings=effective.settings)
    exemptions = Exemptions.read(annotations_of(obj), config, facts.namespace)
    current, changes, results, crashes = obj, [], [], []
    for policy in policies:
        mode = effective.policy_mode(policy)
        if mode is Mode.OFF or policy.mutate is None:
            continue
        if policy.id in exemptions.reasons:
            results.append(_exempted(policy.id, exemptions.reasons[policy.id]))
            continue
        settings = effective.settings(policy.settings)
        try:
            after = policy.mutate(current, settings, facts)
            patch = diff(current, after)
            advice = list(policy.advise(after, settings, facts)) if policy.advise else []
        except Exception as error:
            crashes.append(_crash(policy.id, error))
            continue
        if patch:
            changes.append(Change(policy.id, mode, patch, current))
            current = after if mode is Mode.ENFORCE else current
        results += [Result(policy.id, _cut(finding), mode.at_most(Mode.WARN)) for finding in advice]
    return Decision(current, (), tuple(changes), tuple(results), tuple(crashes), exemptions.notes)


def _exempted(policy_id: str, reason: str) -> Result:
    path = f"metadata.annotations[{EXEMPT}]"
    return Result(policy_id, Finding(path, "The policy was not applied.", ""), Mode.AUDIT, exempted=reason)


# --- the validating half -------------------------------------------------------------------------


def validate(request: Request, config: Config, cluster: Cluster) -> Decision:
    """All findings about the object as sent, each with the mode in which it is answered."""
    obj = request.object or {}
    if not in_scope(request, config):
        return Decision(obj)
    allowed = allowance()
    bounds = bounded(obj, config.workloads, allowed)
    owned = owner_behind(request, config.webhook.controllers) is not None
    if not bounds.whole:
        return Decision(obj, notes=bounds.undecided, owned=owned, docs_url=config.webhook.docs_url)
    facts = Facts(request.namespace, cluster)
    effective = config.effective(obj, facts.namespace, facts.namespace_labels())
    facts = replace(facts, settings=effective.settings)
    projection = project(obj, bounds.templates, config, facts)
    found, crashes = _findings(projection.target, effective, facts, config)
    exemptions = _exemptions(obj, projection.target, config, facts.namespace)
    results = [
        Result(
            rule.id,
            finding,
            mode,
            exempted=_exempting(rule, finding, exemptions),
            exemptable=may_exempt(rule.id, config, facts.namespace),
            family=rule.document.family,
        )
        for rule, finding in found
        if (mode := effective.rule_mode(rule, finding.certainty)) is not Mode.OFF
    ]
    exempted = {rule for known in exemptions.get("", ()) for rule in known.reasons}
    crashes = [_harmless(crash) if crash.id in exempted else crash for crash in crashes]
    if bounds.undecided:
        results, crashes = _spared(results, "part of it is not decided"), [*map(_harmless, crashes)]
    elif any(result.denies for result in results) or any(crash.denies for crash in crashes):
        results, crashes = _spare(
            results, crashes, request, projection.target, config, effective, facts, allowed
        )
    said = (note for known in chain(*exemptions.values()) for note in known.notes)
    kept, notes = _foremost(
        (*results, *_unsaid(projection.advice, results)), (*bounds.undecided, *dict.fromkeys(said))
    )
    return Decision(
        obj,
        changes=projection.changes,
        results=kept,
        crashes=(*projection.crashes, *crashes),
        notes=notes,
        projected=projection.obj if projection.obj is not obj else None,
        owned=owned,
        docs_url=config.webhook.docs_url,
    )


@dataclass(frozen=True, slots=True)
class Projection:
    """A workload as judged: its pods as they will be made."""

    target: Target
    """`obj` is the object as sent; its `templates` are the projected ones."""
    obj: Json
    """The object with its pod templates projected; the one sent where nothing is changed."""
    changes: tuple[Change, ...] = ()
    advice: tuple[Result, ...] = ()
    """What the policies have to say of the pods; nobody reads it at the pods that a controller makes."""
    crashes: tuple[Crash, ...] = ()


def project(obj: Json, own: Iterable[PodTemplate], config: Config, facts: Facts) -> Projection:
    """Apply the pod-level policies in force to a copy of each of its pod templates that is projected.

    A Pod is judged as it is: its mutations have run before.
    """
    projected = obj
    templates: list[PodTemplate] = []
    changes: list[Change] = []
    advice: list[Result] = []
    crashes: list[Crash] = []
    for template in own:
        if template.workload is None or not template.workload.projected or template.container_path:
            templates.append(template)
            continue
        folded = _fold(template.pod, list(_policies(template.pod)), config, facts)
        if folded.object is not template.pod:
            projected = with_template(projected, template, folded.object)
        templates.append(replace(template, pod=folded.object))
        changes += [replace(change, template=template.path) for change in folded.changes]
        advice += [_at_template(template, result) for result in folded.results]
        crashes += folded.crashes
    target = Target(obj, kind_of(obj), tuple(templates))
    return Projection(target, projected, tuple(changes), tuple(advice), tuple(crashes))


def _unsaid(advice: Sequence[Result], results: Sequence[Result]) -> list[Result]:
    """The advice about places of which no rule has spoken: one warning for one thing."""
    said = {scope for result in results for scope in scopes(result.finding.path)}
    return [each for each in advice if each.finding.path not in said]


def _at_template(template: PodTemplate, result: Result) -> Result:
    """What was said of a pod, with its path in the workload that the pod is made from."""
    finding = result.finding
    for root, place in (("metadata", template.metadata_path), ("spec", template.spec_path)):
        if root in scopes(finding.path):
            return replace(result, finding=replace(finding, path=place + finding.path.removeprefix(root)))
    return result


def _findings(
    target: Target, effective: Effective, facts: Facts, config: Config
) -> tuple[list[tuple[Rule, Finding]], list[Crash]]:
    found: list[tuple[Rule, Finding]] = []
    crashes: list[Crash] = []
    for rule in chain(registry.rules().values(), config.own_rules.values()):
        if not (target.templates if rule.kinds is None else target.kind in rule.kinds):
            continue
        if effective.modes.get(rule.id) is Mode.OFF:
            continue
        try:
            found += [(rule, _cut(finding)) for finding in rule.check(target, facts)]
        except Exception as error:
            denies = config.webhook.on_error == "deny" and effective.rule_mode(rule) is Mode.ENFORCE
            crashes.append(_crash(rule.id, error, denies=denies))
    return found, crashes


MOST_RESULTS: Final = 50
"""Findings that a review answers with; what it refuses comes first."""
_LONGEST: Final = 2000
"""Characters of a finding's sentence: names that a user chose stand in it."""


def _cut(finding: Finding) -> Finding:
    if len(finding.message) <= _LONGEST and len(finding.hint) <= _LONGEST:
        return finding
    return replace(finding, message=_beginning(finding.message), hint=_beginning(finding.hint))


def _beginning(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _foremost(results: Sequence[Result], notes: Sequence[str]) -> tuple[tuple[Result, ...], tuple[str, ...]]:
    """The results that are answered, in their order, and the notes with one that counts the others."""
    more = len(results) - MOST_RESULTS
    if more <= 0:
        return tuple(results), tuple(notes)
    order = sorted(range(len(results)), key=lambda index: not results[index].denies)
    kept = tuple(results[index] for index in sorted(order[:MOST_RESULTS]))
    return kept, (*notes, f"{MOST_RESULTS} of {len(results):,} findings are shown")


def _exempting(rule: Rule, finding: Finding, exemptions: Mapping[str, Sequence[Exemptions]]) -> str | None:
    """The reason of the first exemption from the rule that covers the finding's place."""
    reasons = (
        known.reasons.get(rule.id) for scope in scopes(finding.path) for known in exemptions.get(scope, ())
    )
    return next((reason for reason in reasons if reason is not None), None)


def _exemptions(
    obj: Json, target: Target, config: Config, namespace: str
) -> Mapping[str, Sequence[Exemptions]]:
    """What is exempted, by the path below which it counts: at the object all of it, at one of several pod
    templates that template."""
    annotated = [("", annotations_of(obj))]
    for template in target.templates:
        if template.path:
            scope = "" if len(target.templates) == 1 else template.path
            annotated.append((scope, annotations_of(template.pod)))
    found: dict[str, list[Exemptions]] = {}
    for scope, own in annotated:
        if EXEMPT in own:
            found.setdefault(scope, []).append(Exemptions.read(own, config, namespace))
    return found


# --- never turn a risk into an outage --------------------------------------------------------------


def spared(request: Request, config: Config) -> str:
    """Why nothing about a request is refused, since that would stop what already runs; empty if it may be."""
    owner = owner_behind(request, config.webhook.controllers)
    if owner is not None:
        return f"it belongs to a {text(owner, 'kind')[:63]}, and its replacement is never refused"
    if request.operation == "UPDATE" and same(_substance(request.old_object), _substance(request.object)):
        return "the update leaves the spec as it was"
    return ""


def _spare(
    results: Sequence[Result],
    crashes: Sequence[Crash],
    request: Request,
    target: Target,
    config: Config,
    effective: Effective,
    facts: Facts,
    allowed: Allowance,
) -> tuple[list[Result], list[Crash]]:
    """Warn where a refusal would stop what already runs: owned objects and old findings."""
    old, why = request.old_object, spared(request, config)
    if why:
        return _spared(results, why), [_harmless(crash) for crash in crashes]
    if request.operation != "UPDATE" or old is None:
        return list(results), list(crashes)
    bounds = bounded(old, config.workloads, allowed)
    if bounds.undecided:
        unknown = "what it was before is too much to be compared"
        return _spared(results, unknown), [_harmless(crash) for crash in crashes]
    before, crashed = _findings(
        project(old, bounds.templates, config, facts).target, effective, facts, config
    )
    known = _Earlier(old, before)
    kept: list[Result] = []
    for result in results:
        place = (result.rule, named(target.obj, result.finding.path))
        is_old = known.excuses(place, result.finding, value_at(request.object, result.finding.path))
        kept += _spared([result], "it was there before this update") if is_old else [result]
    ids = {crash.id for crash in crashed}
    return kept, [_harmless(crash) if crash.id in ids else crash for crash in crashes]


Place = tuple[str, tuple[str, ...]]
"""A rule, and a field path with the names of list elements in place of their indices."""


class _Earlier:
    """What was found in an object before an update."""

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

        What was only suspected excuses nothing that is certain.
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


_DOUBTS: Final = (Certainty.SURE, Certainty.LIKELY, Certainty.UNDECIDED)


def _spared(results: Sequence[Result], why: str) -> list[Result]:
    return [replace(v, mode=Mode.WARN, spared=why) if v.denies else v for v in results]


def _harmless(crash: Crash) -> Crash:
    return replace(crash, denies=False)


def _substance(obj: Json | None) -> Json:
    """An object without what an update of metadata, status or scale changes."""
    rest = {key: value for key, value in (obj or {}).items() if key not in ("metadata", "status")}
    if "replicas" in mapping(rest, "spec"):
        rest["spec"] = {key: value for key, value in rest["spec"].items() if key != "replicas"}
    return rest


def _crash(name: str, error: Exception, *, denies: bool = False) -> Crash:
    return Crash(name, f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)), denies)
