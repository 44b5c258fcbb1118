"""drain-blocked-by-pdb: disruption budgets that block every drain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any, Final

from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.core.facts import BY_NAME, find_by_name
from policies.core.groups import LWS_NAME
from policies.core.listing import Index, is_manifest
from policies.core.resources import Resource
from policies.core.scaled_objects import SCALED_OBJECT, autoscaler_of_scaled_object
from policies.kube.group_kinds import (
    AUTOSCALER,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    LEADER_WORKER_SET,
    RAY_CLUSTER,
    RAY_SERVICE,
    STATEFUL_SET,
)
from policies.kube.json import Json, dig, integer, mapping, maps, strings, text
from policies.kube.metadata import controller, labels_of
from policies.kube.selectors import matches
from policies.rollouts.rollouts import (
    autoscaler_minimum,
    autoscaler_of,
    count_of,
    minimum_replicas,
    pods_per_replica,
    replicas_of,
)

_HINT: Final = "Allow one eviction: set maxUnavailable to 1, or run more replicas than minAvailable requires."


def check(target: Target, facts: Facts) -> Findings:
    if target.kind == DISRUPTION_BUDGET:
        yield from _budget(target, facts)
    elif target.kind == AUTOSCALER:
        if controller(target.obj) is None:  # else reported for the ScaledObject
            yield from _autoscaler(target.obj, "spec.minReplicas", facts)
    elif target.kind == SCALED_OBJECT:
        autoscaler = autoscaler_of_scaled_object(target.obj)
        if autoscaler is not None:
            yield from _autoscaler(autoscaler, "spec.minReplicaCount", facts)
    elif target.kind in (DEPLOYMENT, STATEFUL_SET):
        yield from _workload(target, facts)
    else:
        yield from _groups(target, facts)


def _budget(target: Target, facts: Facts) -> Findings:
    if _is_deliberate(target.spec.get("selector")):
        return
    most, least = target.spec.get("maxUnavailable"), target.spec.get("minAvailable")
    if _is_all(least) or _is_none(most):
        field = "minAvailable" if _is_all(least) else "maxUnavailable"
        yield Finding(
            f"spec.{field}",
            f"With {field} {target.spec[field]} no pod can be evicted, and node drains block.",
            _HINT,
        )
    elif least is not None:
        yield from _too_few_replicas(target, least, facts)


def _is_deliberate(selector: Any) -> bool:
    """Whether the selector itself declares that its pods must not be evicted: `do-not-evict: "true"`."""
    labels = mapping(selector, "matchLabels").items()
    terms = maps(selector, "matchExpressions")
    words = [f"{key} {value}" for key, value in labels]
    words += [text(term, "key") for term in terms if term.get("operator") in ("In", "Exists")]
    return any(part in word.lower() for word in words for part in ("evict", "disrupt", "drain"))


def _is_none(value: Any) -> bool:
    return value is not None and count_of(value, 100, up=True) == 0


def _is_all(value: Any) -> bool:
    return isinstance(value, str) and (count_of(value, 100, up=True) or 0) >= 100


def _blocks(least: Any, replicas: int) -> bool:
    """Whether a minAvailable, rounded up as by the controller, allows no eviction of so many pods."""
    needed = count_of(least, replicas, up=True)
    return needed is not None and 0 < replicas <= needed


def _too_few_replicas(target: Target, least: Any, facts: Facts) -> Findings:
    """A minAvailable that is not below the replicas of all selected workloads."""
    if _is_long(target.spec.get("selector")):
        return
    # By name, since manifests may contain an object more than once.
    by_name = {
        (text(workload, "kind"), _name(workload)): workload
        for workload in facts.listing(Resource.WORKLOADS) or ()
        if _selects(target.obj, mapping(workload, "spec", "template"))
    }
    selected = list(by_name.values())
    replicas = sum(minimum_replicas(workload, facts) for workload in selected)
    if not _blocks(least, replicas):
        return
    scaled = any(autoscaler_of(workload, facts) for workload in selected)
    names = " and ".join(f"{text(workload, 'kind')} {_name(workload)}" for workload in selected[:2])
    more = f" and {len(selected) - 2} more" if len(selected) > 2 else ""
    complete = _selects_only(target.spec.get("selector"), selected)
    certain = complete and all(_has_known_replicas(workload, facts) for workload in selected)
    others = "" if complete else ", unless the budget selects other pods"
    yield Finding(
        "spec.minAvailable",
        f"{_has_replicas(names + more, len(selected), replicas, scaled=scaled)} "
        f"{_needed(least, replicas)}, so no pod can be evicted and node drains block{others}.",
        _HINT,
        Certainty.UNDECIDED if not certain else Certainty.LIKELY if replicas == 1 else Certainty.CERTAIN,
    )


_MAX_COMBINATIONS: Final = 64
_MAX_TERMS: Final = 64
_MAX_VALUES: Final = 1024
"""The maximum terms and values of a selector that is compared with every workload."""
_MAX_BUDGETS: Final = 8
"""The maximum number of budgets that are reported for a workload."""


def _is_long(selector: Any) -> bool:
    terms = maps(selector, "matchExpressions")
    count = len(terms) + len(mapping(selector, "matchLabels"))
    return count > _MAX_TERMS or sum(len(strings(term, "values")) for term in terms) > _MAX_VALUES


def _selects_only(selector: Any, workloads: list[Json]) -> bool:
    """Whether a budget's selector matches only pods of these workloads.

    A pod that a workload's own selector matches belongs to that workload. The budget also counts the pods of
    DaemonSets and custom resources, which are unknown here.
    """
    if _is_long(selector):
        return False
    labels = mapping(selector, "matchLabels")
    choices = [
        [(text(term, "key"), value) for value in strings(term, "values")]
        for term in maps(selector, "matchExpressions")
        if term.get("operator") == "In"
    ]
    pods = [{**labels, **dict(each)} for each in islice(product(*choices), _MAX_COMBINATIONS + 1)]
    return len(pods) <= _MAX_COMBINATIONS and all(
        any(matches(dig(workload, "spec", "selector"), pod) for workload in workloads) for pod in pods
    )


def _has_known_replicas(workload: Json, facts: Facts) -> bool:
    """Whether the replicas of a workload are known: without `replicas` an unknown autoscaler may set them."""
    return dig(workload, "spec", "replicas") is not None or facts.listing(Resource.AUTOSCALERS) is not None


def _has_replicas(names: str, workloads: int, replicas: int, *, scaled: bool) -> str:
    """A sentence with the minimum number of replicas."""
    if scaled:
        return f"The autoscaler can reduce {names} to {_replicas(replicas)}."
    return f"{names} {'has' if workloads == 1 else 'have'} {_replicas(replicas)}."


def _needed(least: Any, replicas: int) -> str:
    """The effect of a minAvailable, as the start of a sentence."""
    if isinstance(least, str):
        needed = count_of(least, replicas, up=True)
        rounds = "is" if int(least[:-1]) * replicas % 100 == 0 else "rounds up to"
        return f"minAvailable {least} of {replicas} {rounds} {needed}"
    return f"minAvailable is {least}"


def _replicas(number: int) -> str:
    return "1 replica" if number == 1 else f"{number} replicas"


def _workload(target: Target, facts: Facts) -> Findings:
    """A workload that is created after the budget. A warning at most: an autoscaler may come next."""
    replicas = minimum_replicas(target.obj, facts)
    for budget, least in _blocked_by(target.obj, replicas, facts):
        if _is_only_selected(target.obj, budget, facts) and not _existed(target, least, facts):
            yield Finding(
                "spec.replicas",
                f"PodDisruptionBudget {_name(budget)} selects this workload, which has "
                f"{_replicas(replicas)}: {_needed(least, replicas)}, so no pod can be evicted and node "
                "drains block.",
                "Run more replicas than the budget's minAvailable, or give the budget maxUnavailable 1.",
                Certainty.UNDECIDED,
            )


def _blocked_by(workload: Json, replicas: int, facts: Facts) -> Iterator[tuple[Json, Any]]:
    """The budgets, each with its minAvailable, that allow no eviction of so many pods of a workload."""
    labels = labels_of(mapping(workload, "spec", "template"))
    blocking = ((budget, least) for budget, least in _selecting(labels, facts) if _blocks(least, replicas))
    yield from islice(blocking, _MAX_BUDGETS)


def _selecting(labels: Mapping[str, str], facts: Facts) -> Iterator[tuple[Json, Any]]:
    """The budgets that select pods with these labels, each with its minAvailable. A minAvailable of 100% has
    its finding at the budget."""
    budgets = facts.listing(Resource.BUDGETS)
    if not budgets:
        return
    by_label = budgets.by(_BY_LABEL)
    for label in (None, *((key, value) for key, value in labels.items() if isinstance(value, str))):
        for budget in sorted(by_label[label], key=_name):
            least = dig(budget, "spec", "minAvailable")
            if not _is_all(least) and matches(dig(budget, "spec", "selector"), labels):
                yield budget, least


def _groups(target: Target, facts: Facts) -> Findings:
    """A workload whose pods are counted by group: a LeaderWorkerSet, or a Ray cluster."""
    selected: dict[str, int] = {}
    budgets: dict[str, Json] = {}
    for labels, count in _labelled_pods(target, facts):
        for budget, least in _selecting(labels, facts):
            # A disruption controller computes no percentage of pods whose owner has no scale subresource.
            if target.kind == LEADER_WORKER_SET or isinstance(least, int):
                budgets[_name(budget)] = budget
                selected[_name(budget)] = selected.get(_name(budget), 0) + count
    for name, budget in islice(budgets.items(), _MAX_BUDGETS):
        least = dig(budget, "spec", "minAvailable")
        if _blocks(least, selected[name]) and _is_only_selected(target.obj, budget, facts):
            yield Finding(
                _REPLICAS[target.kind],
                f"The smallest size of this workload has {_pods(selected[name])} that PodDisruptionBudget "
                f"{name} selects, and {_needed(least, selected[name])}, so no pod can be evicted and node "
                "drains block.",
                "Set the budget's minAvailable below the number of pods that it selects.",
                Certainty.UNDECIDED,
            )


_REPLICAS: Final = {
    LEADER_WORKER_SET: "spec.replicas",
    RAY_CLUSTER: "spec.workerGroupSpecs",
    RAY_SERVICE: "spec.rayClusterConfig.workerGroupSpecs",
}


def _labelled_pods(target: Target, facts: Facts) -> Iterator[tuple[dict[str, str], int]]:
    """The labels of the pods of each template that tell them from the pods of other workloads, and how many
    pods there are at least."""
    if target.kind == LEADER_WORKER_SET:
        groups = minimum_replicas(target.obj, facts)
        for template, pods in pods_per_replica(target):
            yield {**labels_of(template.pod), LWS_NAME: target.name}, groups * pods
        return
    own = {_RAY_NAME: target.name} if target.kind == RAY_CLUSTER else {}
    for template in target.templates:
        above = mapping(target.obj, *template.steps[:-1])
        head = template.steps[-2] == "headGroupSpec"
        scales = dig(target.obj, *template.steps[:-3], "enableInTreeAutoscaling") is True
        yield {**labels_of(template.pod), **own}, 1 if head else _ray_workers(above, scales=scales)


_RAY_NAME: Final = "ray.io/cluster"


def _ray_workers(group: Json, *, scales: bool) -> int:
    """The pods of a worker group, at the least if Ray's autoscaler scales it."""
    least = integer(group, "minReplicas", default=0)
    replicas = least if scales else max(least, integer(group, "replicas", default=least))
    suspended = group.get("suspend") is True
    return 0 if suspended else replicas * max(1, integer(group, "numOfHosts", default=1))


def _pods(number: int) -> str:
    return "1 pod" if number == 1 else f"{number} pods"


def _autoscaler(autoscaler: Json, path: str, facts: Facts) -> Findings:
    """An autoscaler that is edited after the budget was created."""
    workload = _scaled(autoscaler, facts)
    if workload is None or replicas_of(workload) == 0:  # 0 switches the autoscaler off
        return
    replicas = autoscaler_minimum(autoscaler)
    most = integer(autoscaler, "spec", "maxReplicas", default=replicas)
    before = facts.listing(Resource.AUTOSCALERS)
    known = find_by_name(before, _name(autoscaler))
    for budget, least in _blocked_by(workload, replicas, facts):
        if not _is_only_selected(workload, budget, facts) or _had_same_effect(known, budget, least):
            continue
        what = f"{text(workload, 'kind')} {_name(workload)}"
        guard = f"PodDisruptionBudget {_name(budget)} with minAvailable {least}"
        if _blocks(least, most):
            message = (
                f"The autoscaler never runs more than {_replicas(most)} of {what}, so {guard} allows no "
                "eviction, and node drains block."
            )
            certainty = Certainty.CERTAIN if most > 1 else Certainty.LIKELY
        else:
            message = (
                f"The autoscaler can reduce {what} to {_replicas(replicas)}. {guard} allows no eviction "
                "then, and node drains block."
            )
            certainty = Certainty.LIKELY
        yield Finding(
            path,
            message,
            "Raise the minimum above the budget's minAvailable, or give the budget maxUnavailable 1.",
            certainty if _selects_only(dig(budget, "spec", "selector"), [workload]) else Certainty.UNDECIDED,
        )


def _scaled(autoscaler: Json, facts: Facts) -> Json | None:
    """The workload that an autoscaler scales, if it is known."""
    target = mapping(autoscaler, "spec", "scaleTargetRef")
    workloads = facts.listing(Resource.WORKLOADS)
    named = workloads.by(BY_NAME)[text(target, "name")] if workloads else ()
    return next((each for each in named if text(each, "kind") == text(target, "kind")), None)


def _had_same_effect(known: Json | None, budget: Json, least: Any) -> bool:
    """Whether the autoscaler already blocked evictions before the edit. The budget then has its own finding,
    unless it is in the cluster and the autoscaler in a manifest."""
    if known is None or not _blocks(least, autoscaler_minimum(known)):
        return False
    return not is_manifest(known) or is_manifest(budget)


def _existed(target: Target, least: Any, facts: Facts) -> bool:
    """Whether the workload existed already, with as few replicas. The budget then has its own finding."""
    return any(
        (text(workload, "kind"), _name(workload)) == (target.kind.kind, target.name)
        and _blocks(least, minimum_replicas(workload, facts))
        for workload in facts.listing(Resource.WORKLOADS) or ()
    )


def _label_of(budget: Json) -> Iterator[tuple[str, str] | None]:
    """One label of a budget's selector; None if it has no labels."""
    labels = mapping(budget, "spec", "selector", "matchLabels").items()
    yield next(((key, value) for key, value in labels if isinstance(value, str)), None)


_BY_LABEL: Final = Index(_label_of)


def _is_only_selected(workload: Json, budget: Json, facts: Facts) -> bool:
    """Whether a budget selects no other workload."""
    return not any(
        _selects(budget, mapping(other, "spec", "template"))
        for other in facts.listing(Resource.WORKLOADS) or ()
        if (text(other, "kind"), _name(other)) != (text(workload, "kind"), _name(workload))
    )


def _selects(budget: Json, template: Json) -> bool:
    return matches(dig(budget, "spec", "selector"), labels_of(template))


def _name(obj: Json) -> str:
    return text(obj, "metadata", "name")


RULE = rule(
    __name__,
    check,
    (DISRUPTION_BUDGET, AUTOSCALER, SCALED_OBJECT, DEPLOYMENT, STATEFUL_SET, *_REPLICAS),
)
