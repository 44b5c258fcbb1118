"""The law of injection: the project's own work passes the project's own review.

`objections` returns every breach of it for one object. Each test that has objects can use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias

import msgspec

from policies.core import registry
from policies.core.facts import Cluster
from policies.core.finding import Mode
from policies.kube.field_paths import field_path, named
from policies.kube.json import Json
from webhook.admission import engine
from webhook.admission.configuration import Config, Override
from webhook.admission.decision import Decision, Result
from webhook.admission.envelope import Request
from webhook.admission.json_patch import diff, steps_of
from webhook.admission.review import Review
from webhook.cli.fix import fixed_object
from webhook.cli.reviewed import review_documents
from webhook.manifests.files import Document

Place: TypeAlias = tuple[str, ...]
"""The segments of a field path, with the names of list elements."""

SAME_GAP = {"readiness-without-liveness": "liveness-missing"}
"""Two rules for one gap: a missing livenessProbe, next to a readinessProbe and without one."""
FOR_ALL = frozenset({"liveness-missing"})
"""Rules with one finding for all containers of a pod, at the first of them."""
NOTICES = {
    "progress-deadline-too-short": "an injected readinessProbe waits for the model longer than the deadline, "
    "which is a field of the Deployment, and only pods are changed"
}
"""Rules that report a consequence of an injection at a field of the user's workload, each with the reason."""


def objections(obj: Json, config: Config, cluster: Cluster) -> list[str]:
    """The findings, of any mode, that lie at an injected field, and those that an injection adds.

    An injection is a field of the mutated object, of a workload's projected pods, and of the file that
    `chassis fix` writes.
    """
    (review,) = review_documents([Document("object", 0, obj)], config, cluster)
    assert review.decision.crashes == ()
    request, projected = review.request, review.final
    fixed, _ = fixed_object(review, config, cluster, ())
    if projected == obj == fixed:
        return []  # nothing is injected
    bare = _without_mutators(config)
    found = _findings(obj, _validated(request, obj, bare, cluster).results)
    breaches = list(_breaches("admitted", obj, projected, review.decision.results, found))
    results = _validated(request, projected, bare, cluster).results
    for stage, after in (("stored", projected), ("fixed", fixed)):
        if after != projected:
            results = _validated(request, after, bare, cluster).results
        breaches += _breaches(stage, obj, after, results, found)
    return breaches


_BARE: list[tuple[Config, Config]] = []
"""The last policy, and the same without mutators: most objects in a row have the same policy."""


def _without_mutators(config: Config) -> Config:
    if not _BARE or _BARE[0][0] is not config:
        _BARE[:] = [(config, without_mutators(config))]
    return _BARE[0][1]


def without_mutators(config: Config) -> Config:
    """The same policy with every mutator off."""
    off = Override(modes=dict.fromkeys(registry.mutators(), Mode.OFF))
    webhook = msgspec.structs.replace(config.webhook, overrides=(*config.webhook.overrides, off))
    return replace(config, webhook=webhook, overridden=(*config.overridden, {}))


def _validated(request: Request, obj: Json, config: Config, cluster: Cluster) -> Decision:
    return engine.validate(Review(replace(request, object=obj), config, cluster))


def _breaches(
    stage: str, before: Json, after: Json, results: Iterable[Result], found: dict[tuple[str, Place], Result]
) -> Iterator[str]:
    injected = list(_injected(before, after))
    known = {(rule, _among(rule, place)) for rule, place in found}
    for (rule, place), result in _findings(after, results).items():
        finding = result.finding
        told = f"{stage}: {result.rule} ({result.mode}) at {finding.path}: {finding.message}"
        if any(place[: len(field)] == field for field in injected):
            yield f"at an injected field, {told}"
        elif (rule, _among(rule, place)) not in known and rule not in {*registry.mutators(), *NOTICES}:
            yield f"added by an injection, {told}"


def _findings(obj: Json, results: Iterable[Result]) -> dict[tuple[str, Place], Result]:
    """The findings by rule and place."""
    return {(SAME_GAP.get(each.rule, each.rule), named(obj, each.finding.path)): each for each in results}


def _among(rule: str, place: Place) -> Place:
    """The place, or that of the pod."""
    lists = [n for n, step in enumerate(place) if step in ("containers", "initContainers")]
    return place[: lists[0]] if rule in FOR_ALL and lists else place


def _injected(before: Json, after: Json) -> Iterator[Place]:
    """The place of each added or changed field, without the annotation that lists them."""
    for operation in diff(before, after):
        steps = [int(step) if step.isdigit() else step for step in steps_of(operation["path"])]
        added = operation.get("value")
        # A list that was missing is the list of its elements, as if an element had been added to it.
        places = [[*steps, n] for n in range(len(added))] if isinstance(added, list) else [steps]
        yield from (named(after, field_path(place)) for place in places)
