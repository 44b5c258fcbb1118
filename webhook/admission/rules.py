"""Running the rules over a target: their findings with modes and exemptions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from policies.core import registry
from policies.core.annotations import EXEMPT, misspelt_annotations
from policies.core.composing import OTHER_OBJECT
from policies.core.contracts import Rule
from policies.core.facts import WholeObjects
from policies.core.finding import Certainty, Finding, Mode
from policies.core.pod_bases import CLUSTER_SERVING_RUNTIME, SERVING_RUNTIME, Base
from policies.core.pod_templates import with_own_runtime
from policies.core.pod_view import PodFeature
from policies.core.runs import run_of
from policies.core.target import PodTemplate, Target
from policies.kube.cache import Cache
from policies.kube.field_paths import scopes
from policies.kube.group_kinds import INFERENCE_SERVICE, GroupKind
from policies.kube.json import Json
from policies.kube.metadata import annotations_of
from webhook.admission.bounds import allowance, bounded
from webhook.admission.decision import Crash, Result, crash_from, not_denying, with_short_texts
from webhook.admission.exemptions import Exemptions, may_exempt
from webhook.admission.projection import Projection, project
from webhook.admission.review import Context, Review


class RuleResults(Struct, frozen=True):
    """The results of the rules, before they are compared with those of the object before an update."""

    results: list[Result]
    crashes: list[Crash]
    exemptions: Mapping[str, Sequence[Exemptions]]
    """By the path to which they apply."""


def judge(projection: Projection, review: Review) -> RuleResults:
    """The findings in the object and its projected pods, each with its mode and exemption."""
    target, context, config = projection.target, review.context, review.config
    found, crashes = findings(target, context, lambda base: _found_in(base, review))
    if target.kind == INFERENCE_SERVICE:
        found += _with_own_runtime(target, context, found)
    exemptions = _exemptions_of(target, context)
    by_shape = any(template.by_shape for template in target.templates)
    results = [
        Result(
            rule.id,
            finding,
            mode,
            exempted=_exemption_reason(rule, finding, exemptions) if exemptions else None,
            exemptable=may_exempt(rule.id, config, context.namespace),
            family=rule.document.family,
            by_shape=by_shape,
        )
        for rule, finding in _without_room(found, target.obj)
        if (mode := context.effective.rule_mode(rule, finding.certainty)) is not Mode.OFF
    ]
    exempted = {rule for known in exemptions.get("", ()) for rule in known.reasons}
    crashes = [not_denying(crash) if crash.id in exempted else crash for crash in crashes]
    return RuleResults(results, crashes, exemptions)


def _with_own_runtime(
    target: Target, context: Context, found: Sequence[tuple[Rule, Finding]]
) -> list[tuple[Rule, Finding]]:
    """The further findings of an InferenceService whose runtime is not known, if it is the one that KServe
    installs. Such a finding warns at most."""
    whole = context.facts.whole
    if whole is not None and not whole.of_files:
        return []  # a cluster has the runtime, or another one
    others = None if whole is None else _runtimes(whole)
    template = with_own_runtime(target.obj, target.templates, others)
    if template is None:
        return []
    rest = (each for each in target.templates if each.path != template.path)
    more, _ = findings(Target(target.obj, target.kind, (template, *rest)), context)
    known = {(rule.id, finding.path) for rule, finding in found}
    said = f"With KServe's own {template.own_runtime}: "
    return [
        (rule, replace(each, message=f"{said}{each.message}", certainty=each.certainty.in_doubt()))
        for rule, each in more
        if (rule.id, each.path) not in known
    ]


def _runtimes(whole: WholeObjects) -> Iterator[Json]:
    """Those of all namespaces: files may leave theirs out."""
    yield from whole.every(SERVING_RUNTIME, None)
    yield from whole.every(CLUSTER_SERVING_RUNTIME, None)


def notes_about_annotations(target: Target, exemptions: Mapping[str, Sequence[Exemptions]]) -> Iterable[str]:
    """Sentences about invalid exemptions and misspelt annotations, each once."""
    notes = [note for known in chain(*exemptions.values()) for note in known.notes]
    for written in (target.obj, *(template.pod for template in target.templates if template.path)):
        notes += misspelt_annotations(annotations_of(written))
    return dict.fromkeys(notes)


def _found_in(base: Base, review: Review) -> frozenset[tuple[str, str]]:
    """Rule and field path of the findings in an object that completes the pods of another."""
    templates = bounded(base.obj, review.config.workloads, allowance()).templates
    found, _ = findings(project(base.obj, templates, review.context).target, review.context)
    return frozenset((rule.id, finding.path) for rule, finding in found)


InBase = Callable[[Base], Collection[tuple[str, str]]]
"""Returns rule and field path of the findings in an object that completes the pods of another."""


def findings(
    target: Target, context: Context, in_base: InBase = lambda _: ()
) -> tuple[list[tuple[Rule, Finding]], list[Crash]]:
    """The findings of all rules that are not off, the webhook's own rules last, and the rules that failed.

    Findings that the review of another object reports (`in_base`) are left out.
    """
    config, effective, facts = context.config, context.effective, context.facts
    found: list[tuple[Rule, Finding]] = []
    crashes: list[Crash] = []
    rules: Iterable[Rule] = _judging(
        registry.rules, target.kind, bool(target.templates), _features_of(target), target.has_controller
    )
    if config.own_rules:
        own = config.own_rules.values()
        rules = (
            *rules,
            *(rule for rule in own if rule.applies(target.kind, has_pods=bool(target.templates))),
        )
    for rule in rules:
        if effective.modes.get(rule.id) is Mode.OFF:
            continue
        try:
            if reported := list(rule.check(target, facts)):
                found += [(rule, with_short_texts(finding)) for finding in reported]
        except Exception as error:
            denies = config.webhook.on_error == "deny" and effective.rule_mode(rule) is Mode.ENFORCE
            crashes.append(crash_from(rule.id, error, denies=denies))
    if not all(template.is_exact and not template.claims for template in target.templates):
        found = _all_placed(found, target, in_base)
    if len(found) > 1:
        found.sort(key=lambda each: (each[0].id in config.own_rules, *registry.sort_key(each[0])))
    return found, crashes


def _without_room(found: Sequence[tuple[Rule, Finding]], obj: Json) -> Sequence[tuple[Rule, Finding]]:
    """Without findings about the room in the cluster for pods that are created later, or elsewhere.

    Until a suspended workload starts, it may be changed, and so may the cluster: nothing is decided. The
    ratchet compares with all findings, so an update that starts the workload is not refused for them.
    """
    run = run_of(obj) if any(rule.at_once for rule, _ in found) else None
    if run is None or run.creates_pods:
        return found
    return [
        (rule, replace(finding, certainty=Certainty.UNDECIDED) if rule.at_once else finding)
        for rule, finding in found
        if not rule.at_once or (not run.is_delegated and finding.certainty is Certainty.CERTAIN)
    ]


def _all_placed(
    found: Iterable[tuple[Rule, Finding]], target: Target, in_base: InBase
) -> list[tuple[Rule, Finding]]:
    known, by_spec = Cache(), defaultdict[str, list[PodTemplate]](list)
    for template in target.templates:
        by_spec[template.spec_path].append(template)

    def once_in_base(base: Base) -> Collection[tuple[str, str]]:
        return known.once_for(id(base), in_base, base)

    placed = ((rule, _placed(rule, each, target, by_spec, once_in_base)) for rule, each in found)
    return [(rule, finding) for rule, finding in placed if finding is not None]


def _placed(
    rule: Rule,
    finding: Finding,
    target: Target,
    by_spec: Mapping[str, Sequence[PodTemplate]],
    in_base: InBase,
) -> Finding | None:
    """The finding with the path of the field that contains the value, undecided if the pods are uncertain.

    The message names a field of another object, and the path is the reference to it. None if the review of
    that object reports the same finding. `by_spec`: the object's templates by the paths of their pod specs.
    """
    around = [each for scope in scopes(finding.path) for each in by_spec.get(scope, ())]
    template = max(
        around,
        key=lambda each: (len(each.spec_path), each.source_path(finding.path) != finding.path),
        default=None,
    )
    if template is None:
        sure = any(each.is_exact for each in target.templates)
        return finding if sure else replace(finding, certainty=finding.certainty.in_doubt())
    path, base = template.source_path(finding.path), template.base
    if template.is_exact:
        return finding if path == finding.path else replace(finding, path=path)
    if base is None or not path.startswith(OTHER_OBJECT):
        return replace(finding, path=path, certainty=finding.certainty.in_doubt())
    path = path.removeprefix(OTHER_OBJECT)
    if (rule.id, path) in in_base(base):
        return None
    message = f"{base.kind.kind} {base.name}, {path}: {finding.message}"
    return replace(finding, path=base.at, message=message, certainty=finding.certainty.in_doubt())


def _features_of(target: Target) -> frozenset[PodFeature]:
    """The features that any of its pods has."""
    known = [template.view.features for template in target.templates]
    return known[0] if len(known) == 1 else frozenset[PodFeature]().union(*known)


@lru_cache(maxsize=1024)
def _judging(
    rules: Callable[[], Mapping[str, Rule]],
    kind: GroupKind,
    has_templates: bool,
    features: frozenset[PodFeature],
    has_controller: bool,
) -> tuple[Rule, ...]:
    """The rules that judge objects of a kind whose pods have these features."""
    return tuple(
        rule
        for rule in rules().values()
        if rule.applies(kind, has_pods=has_templates)
        and (rule.requires <= features or kind in rule.also)
        and not (rule.unowned and has_controller)
    )


def _exemption_reason(
    rule: Rule, finding: Finding, exemptions: Mapping[str, Sequence[Exemptions]]
) -> str | None:
    """The reason of the first exemption from the rule that covers the finding's path."""
    reasons = (
        known.reasons.get(rule.id) for scope in scopes(finding.path) for known in exemptions.get(scope, ())
    )
    return next((reason for reason in reasons if reason is not None), None)


def _exemptions_of(target: Target, context: Context) -> Mapping[str, Sequence[Exemptions]]:
    """Exemptions by the path to which they apply: an empty path for annotations of the object or its only pod
    template, else the path of the pod template."""
    annotated = [("", annotations_of(target.obj))]
    for template in target.templates:
        if template.path:
            scope = "" if len(target.templates) == 1 else template.path
            annotated.append((scope, annotations_of(template.pod)))
    found: dict[str, list[Exemptions]] = {}
    for scope, own in annotated:
        if EXEMPT in own:
            found.setdefault(scope, []).append(Exemptions.read(own, context.config, context.namespace))
    return found
