"""drain-blocked-by-pdb: disruption budgets that block every drain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Final

from policies.core.autoscalers import (
    autoscaler_minimum,
    autoscaler_of,
    autoscaler_of_scaled_object,
    scaled_workload,
)
from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.core.groups import RAY_CLUSTER_NAME, RAY_GROUP, RAY_NODE_TYPE, labels_of_pods
from policies.core.services import workloads_of
from policies.disruption.budgets import budgets_of
from policies.kube.group_kinds import (
    AUTOSCALER,
    CRON_JOB,
    DISRUPTION_BUDGET,
    JOB,
    JOB_SET,
    LEADER_WORKER_SET,
    RAY_CLUSTER,
    RAY_SERVICE,
    SCALED_OBJECT,
    SERVING,
)
from policies.kube.names import plural
from policies.kube.objects.metadata import IntOrString, LabelSelector
from policies.kube.objects.ray import RayCluster, RayService, WorkerGroupSpec
from policies.kube.objects.reading import read
from policies.kube.objects.scaling import HorizontalPodAutoscaler, PodDisruptionBudget
from policies.kube.objects.workloads import Replicated
from policies.rollouts.rollouts import count_of, minimum_of, minimum_replicas, pods_per_replica, replicas_of

_HINT: Final = (
    "Set maxUnavailable to 1, which allows one eviction. So do more replicas than minAvailable, if they keep "
    "no state of their own."
)


def check(target: Target, facts: Facts) -> Findings:
    if target.kind == DISRUPTION_BUDGET:
        yield from _budget(target.read(PodDisruptionBudget), facts)
    elif target.kind == AUTOSCALER:
        if not target.has_controller:  # else reported for the ScaledObject
            yield from _autoscaler(target.read(HorizontalPodAutoscaler), "spec.minReplicas", facts)
    elif target.kind == SCALED_OBJECT:
        made = autoscaler_of_scaled_object(target.obj)
        if made is not None:
            yield from _autoscaler(read(made, HorizontalPodAutoscaler), "spec.minReplicaCount", facts)
    elif target.kind in SERVING:
        yield from _workload(target, facts)
    elif target.kind in _UNSCALED:
        yield from _pods_of_jobs(target, facts)
    else:
        yield from _groups(target, facts)


def _budget(budget: PodDisruptionBudget, facts: Facts) -> Findings:
    selector = budget.spec.selector
    if selector is None or _is_deliberate(selector):
        return  # without a selector it selects no pods
    most, least = budget.spec.max_unavailable, budget.spec.min_available
    if _is_all(least) or _is_none(most):
        field, value = ("minAvailable", least) if _is_all(least) else ("maxUnavailable", most)
        yield Finding(
            f"spec.{field}",
            f"With {field} {value}, no pod can be evicted, and node drains block.",
            _HINT,
        )
    elif found := list(_second_budget(budget, selector, facts)):
        yield from found
    elif least is not None:
        yield from _too_few_replicas(selector, least, facts)


def _second_budget(budget: PodDisruptionBudget, selector: LabelSelector, facts: Facts) -> Findings:
    """Pods of which another budget selects some, too: the API server evicts none of them (`EvictionREST` in
    pkg/registry/core/pod/storage/eviction.go of Kubernetes 1.36)."""
    if _is_long(selector):
        return
    for _, workload in workloads_of(selector, facts):
        labels = workload.spec.template.metadata.labels
        others = sorted(each.rank for each in budgets_of(labels, facts) if each.name != budget.name)
        if others and minimum_of(workload, facts) and facts.is_first(budget.rank, others):
            yield Finding(
                "spec.selector",
                f"PodDisruptionBudget {others[0][1]} also selects the pods of {workload.kind} "
                f"{workload.name}. The API server refuses to evict a pod that two budgets select, so node "
                "drains block.",
                "Keep one budget for these pods.",
                Certainty.LIKELY,  # an upgrade that renames the budget deletes the other one afterwards
            )
            return


def _is_deliberate(selector: LabelSelector) -> bool:
    """Whether the selector itself declares that its pods must not be evicted: `do-not-evict: "true"`."""
    words = [f"{key} {value}" for key, value in selector.match_labels.items()]
    words += [each.key for each in selector.match_expressions if each.operator in ("In", "Exists")]
    return any(part in word.lower() for word in words for part in ("evict", "disrupt", "drain"))


def _is_none(value: IntOrString | None) -> bool:
    return value is not None and count_of(value, 100, up=True) == 0


def _is_all(value: IntOrString | None) -> bool:
    return isinstance(value, str) and (count_of(value, 100, up=True) or 0) >= 100


def _blocks(least: IntOrString, replicas: int) -> bool:
    """Whether a minAvailable, rounded up as by the controller, allows no eviction of so many pods."""
    needed = count_of(least, replicas, up=True)
    return needed is not None and 0 < replicas <= needed


def _too_few_replicas(selector: LabelSelector, least: IntOrString, facts: Facts) -> Findings:
    """A minAvailable that is not below the replicas of all selected workloads."""
    if _is_long(selector):
        return
    # By name, since manifests may contain an object more than once.
    by_name = {(workload.kind, workload.name): workload for _, workload in workloads_of(selector, facts)}
    selected = list(by_name.values())
    replicas = sum(minimum_of(workload, facts) for workload in selected)
    if not _blocks(least, replicas):
        return
    scaled = any(autoscaler_of(workload.kind, workload.name, facts) for workload in selected)
    names = " and ".join(f"{workload.kind} {workload.name}" for workload in selected[:2])
    more = f" and {len(selected) - 2} more" if len(selected) > 2 else ""
    complete = _selects_only(selector, selected)
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


def _is_long(selector: LabelSelector) -> bool:
    terms = selector.match_expressions
    count = len(terms) + len(selector.match_labels)
    return count > _MAX_TERMS or sum(len(term.values) for term in terms) > _MAX_VALUES


def _selects_only(selector: LabelSelector, workloads: Sequence[Replicated]) -> bool:
    """Whether a budget's selector matches only pods of these workloads.

    A pod that a workload's own selector matches belongs to that workload. The budget also counts the pods of
    DaemonSets and custom resources, which are unknown here.
    """
    if _is_long(selector):
        return False
    own = [workload.spec.selector for workload in workloads if workload.spec.selector is not None]
    choices = [
        [(term.key, value) for value in term.values]
        for term in selector.match_expressions
        if term.operator == "In"
    ]
    combinations = islice(product(*choices), _MAX_COMBINATIONS + 1)
    pods = [{**selector.match_labels, **dict(each)} for each in combinations]
    return len(pods) <= _MAX_COMBINATIONS and all(any(each.matches(pod) for each in own) for pod in pods)


def _has_known_replicas(workload: Replicated, facts: Facts) -> bool:
    """Whether the replicas of a workload are known: without `replicas` an unknown autoscaler may set them."""
    return workload.spec.replicas is not None or facts.objects(HorizontalPodAutoscaler) is not None


def _has_replicas(names: str, workloads: int, replicas: int, *, scaled: bool) -> str:
    """A sentence with the minimum number of replicas."""
    if scaled:
        return f"The autoscaler can reduce {names} to {plural(replicas, 'replica')}."
    return f"{names} {'has' if workloads == 1 else 'have'} {plural(replicas, 'replica')}."


def _needed(least: IntOrString, replicas: int) -> str:
    """The effect of a minAvailable, as the start of a sentence."""
    if isinstance(least, str):
        needed = count_of(least, replicas, up=True)
        rounds = "is" if int(least[:-1]) * replicas % 100 == 0 else "rounds up to"
        return f"minAvailable {least} of {replicas} {rounds} {needed}"
    return f"minAvailable is {least}"


def _workload(target: Target, facts: Facts) -> Findings:
    """A workload that is created after the budget. A warning at most: an autoscaler may come next."""
    replicas = minimum_replicas(target, facts)
    labels = target.read(Replicated).spec.template.metadata.labels
    for budget, selector, least in _blocked_by(labels, replicas, facts):
        if _is_only_selected(target.kind.kind, target.name, selector, facts) and not _existed(
            target, least, facts
        ):
            yield Finding(
                "spec.replicas",
                f"PodDisruptionBudget {budget.name} selects this workload, which has "
                f"{plural(replicas, 'replica')}: {_needed(least, replicas)}, so no pod can be evicted and "
                "node drains block.",
                "Give the budget maxUnavailable 1, or run more replicas than its minAvailable, if they keep "
                "no state of their own.",
                Certainty.UNDECIDED,
            )


_Guard = tuple[PodDisruptionBudget, LabelSelector, IntOrString]
"""A budget with its selector and its minAvailable."""


def _blocked_by(labels: Mapping[str, str], replicas: int, facts: Facts) -> Iterator[_Guard]:
    """The budgets that allow no eviction of so many pods with these labels."""
    yield from islice(
        (each for each in _selecting(labels, facts) if _blocks(each[2], replicas)), _MAX_BUDGETS
    )


def _selecting(labels: Mapping[str, str], facts: Facts) -> Iterator[_Guard]:
    """The budgets that select pods with these labels. A minAvailable of 100% has its finding at the
    budget."""
    for budget in budgets_of(labels, facts):
        selector, least = budget.spec.selector, budget.spec.min_available
        if selector is not None and least is not None and not _is_all(least):
            yield budget, selector, least


def _groups(target: Target, facts: Facts) -> Findings:
    """A workload whose pods are counted by group: a LeaderWorkerSet, or a Ray cluster."""
    selected: dict[str, int] = {}
    guards: dict[str, _Guard] = {}
    for labels, count in _labelled_pods(target, facts):
        for guard in _selecting(labels, facts):
            name, least = guard[0].name, guard[2]
            if guard[1].matches({key: labels[key] for key in _OF_ANY_CLUSTER if key in labels}):
                continue
            # A disruption controller computes no percentage of pods whose owner has no scale subresource.
            if target.kind == LEADER_WORKER_SET or isinstance(least, int):
                guards[name] = guard
                selected[name] = selected.get(name, 0) + count
    for name, (_, selector, least) in islice(guards.items(), _MAX_BUDGETS):
        only = _is_only_selected(target.kind.kind, target.name, selector, facts)
        if only and _blocks(least, selected[name]):
            yield Finding(
                _REPLICAS[target.kind],
                f"At its smallest size, this workload has {plural(selected[name], 'pod')} that "
                f"PodDisruptionBudget {name} selects, and {_needed(least, selected[name])}, so no pod "
                "can be evicted and node drains block.",
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
        groups = minimum_replicas(target, facts)
        for template, pods in pods_per_replica(target):
            yield labels_of_pods(target, template), groups * pods
        return
    if target.kind == RAY_CLUSTER:
        own, cluster = {RAY_CLUSTER_NAME: target.name}, target.read(RayCluster).spec
    else:
        own, cluster = {}, target.read(RayService).spec.ray_cluster_config
    for template in target.templates:
        index = template.steps[-2]
        pods, of_kuberay = 1, {RAY_NODE_TYPE: "head", RAY_GROUP: "headgroup"}
        if isinstance(index, int):
            group = cluster.worker_group_specs[index]
            pods = _ray_workers(group, scales=cluster.enable_in_tree_autoscaling)
            of_kuberay = {RAY_NODE_TYPE: "worker", RAY_GROUP: group.group_name}
        yield {**template.typed.metadata.labels, **own, **of_kuberay}, pods


_OF_ANY_CLUSTER: Final = (RAY_NODE_TYPE, RAY_GROUP)
"""Labels that pods of other Ray clusters have too."""


def _ray_workers(group: WorkerGroupSpec, *, scales: bool) -> int:
    """The pods of a worker group, at the least if Ray's autoscaler scales it."""
    return group.min_replicas * group.num_of_hosts if scales and not group.suspend else group.pods


def _autoscaler(autoscaler: HorizontalPodAutoscaler, path: str, facts: Facts) -> Findings:
    """An autoscaler that is edited after the budget was created."""
    workload = scaled_workload(autoscaler, facts)
    if workload is None or replicas_of(workload) == 0:  # 0 switches the autoscaler off
        return
    replicas = autoscaler_minimum(autoscaler)
    most = replicas if autoscaler.spec.max_replicas is None else autoscaler.spec.max_replicas
    autoscalers = facts.objects(HorizontalPodAutoscaler)
    known = autoscalers.named(autoscaler.name) if autoscalers is not None else None
    for budget, selector, least in _blocked_by(workload.spec.template.metadata.labels, replicas, facts):
        only = _is_only_selected(workload.kind, workload.name, selector, facts)
        if not only or _had_same_effect(known, budget, least):
            continue
        what = f"{workload.kind} {workload.name}"
        guard = f"PodDisruptionBudget {budget.name} with minAvailable {least}"
        if _blocks(least, most):
            message = (
                f"The autoscaler never runs more than {plural(most, 'replica')} of {what}, so {guard} allows "
                "no eviction, and node drains block."
            )
            certainty = Certainty.CERTAIN if most > 1 else Certainty.LIKELY
        else:
            message = (
                f"The autoscaler can reduce {what} to {plural(replicas, 'replica')}. Then {guard} allows no "
                "eviction, and node drains block."
            )
            certainty = Certainty.LIKELY
        yield Finding(
            path,
            message,
            "Raise the minimum above the budget's minAvailable, or give the budget maxUnavailable 1.",
            certainty if _selects_only(selector, [workload]) else Certainty.UNDECIDED,
        )


def _had_same_effect(
    known: HorizontalPodAutoscaler | None, budget: PodDisruptionBudget, least: IntOrString
) -> bool:
    """Whether the autoscaler already blocked evictions before the edit. The budget then has its own finding,
    unless it is in the cluster and the autoscaler in a manifest."""
    if known is None or not _blocks(least, autoscaler_minimum(known)):
        return False
    return not known.is_manifest or budget.is_manifest


def _existed(target: Target, least: IntOrString, facts: Facts) -> bool:
    """Whether the workload existed already, with as few replicas. The budget then has its own finding."""
    workloads = facts.objects(Replicated)
    return any(
        workload.kind == target.kind.kind and _blocks(least, minimum_of(workload, facts))
        for workload in (workloads.all_named(target.name) if workloads else ())
    )


def _is_only_selected(kind: str, name: str, selector: LabelSelector, facts: Facts) -> bool:
    """Whether a budget selects no other workload than the one of a kind and name."""
    return all((other.kind, other.name) == (kind, name) for _, other in workloads_of(selector, facts))


def _pods_of_jobs(target: Target, facts: Facts) -> Findings:
    """Pods whose expected number the disruption controller does not know, since a Job has no scale
    subresource: it then allows no eviction (`failSafe` in disruption.go of Kubernetes 1.36)."""
    for template in target.templates:
        labels = template.typed.metadata.labels
        for budget in budgets_of(labels, facts):
            spec = budget.spec
            field = "maxUnavailable" if spec.max_unavailable is not None else "a percentage of minAvailable"
            if spec.max_unavailable is not None or isinstance(spec.min_available, str):
                yield Finding(
                    f"{template.metadata_path}.labels",
                    f"PodDisruptionBudget {budget.name} selects these pods with {field}, which needs a "
                    "replica count that a Job doesn't have. The budget allows no eviction, and node drains "
                    "block until the pods end.",
                    "Exclude these pods from the budget's selector, or set its minAvailable to a number. "
                    "The annotations safe-to-evict and do-not-disrupt keep autoscalers away from the pods.",
                    Certainty.UNDECIDED,
                )
                return


_UNSCALED: Final = (JOB, CRON_JOB, JOB_SET)
"""Kinds whose pods belong to Jobs."""

RULE = rule(
    __name__,
    check,
    (DISRUPTION_BUDGET, AUTOSCALER, SCALED_OBJECT, *SERVING, *_REPLICAS, *_UNSCALED),
)
