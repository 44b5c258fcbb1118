"""queue-never-admits: workloads in a queue of Kueue or Volcano that cannot admit them.

Semantics: `pkg/scheduler/flavorassigner`, `pkg/controller/jobs/job`, `pkg/controller/jobs/raycluster`
(`validateCreate`) and `pkg/cache` (`missingFlavors`) of Kueue 0.14.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from decimal import Decimal
from itertools import chain
from typing import Final

from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.runs import role_of, runs_in
from policies.kube.group_kinds import CRON_JOB, JOB
from policies.kube.names import VERY_SIMILAR, closest, listed
from policies.kube.objects.jobs import Job
from policies.kube.objects.metadata import Object
from policies.kube.objects.nodes import Node
from policies.kube.objects.placement import Affinity, NodeAffinity, NodeSelector, NodeSelectorTerm
from policies.kube.objects.pods import Pod, PodSpec
from policies.kube.objects.queues import QUEUE_NAME, ClusterQueue, LocalQueue, ResourceFlavor
from policies.kube.objects.reading import read
from policies.kube.quantities import whole_number
from policies.kube.scheduling import admits, is_within_limits, required_terms, tolerates
from policies.quotas.limit_ranges import NO_DEFAULTS, defaults_in, formatted, written_requests
from policies.relations.cohorts import greatest_quota
from policies.relations.domains import MAX_NODES
from policies.relations.volcano_queues import beyond_capability

_PATH: Final = f"metadata.labels[{QUEUE_NAME}]"
_ELASTIC: Final = "kueue.x-k8s.io/elastic-job"
_MIN_PARALLELISM: Final = "kueue.x-k8s.io/job-min-parallelism"
_SHOWN: Final = 4
_HINT_QUOTA: Final = "Request less, use another queue, or raise the quota of the ClusterQueue."
_HINT_FLAVOR: Final = "Tolerate the taint of the flavor, correct its labels, or use another queue."


def check(target: Target, facts: Facts) -> Findings:
    yield from beyond_capability(target, facts)
    yield from _of_kueue(target, facts)


def _of_kueue(target: Target, facts: Facts) -> Findings:
    name = target.read(Object).metadata.labels.get(QUEUE_NAME)
    all_queues = facts.cluster_objects(LocalQueue)
    if not name or not all_queues:
        return
    yield from _resized(target)
    queues = facts.objects(LocalQueue)
    versions = [] if queues is None else list(queues.all_named(name))
    if not versions:
        known = [each.name for each in queues or ()]
        # The queue of a manifest may be in files that are not here, unless the name is a misspelling.
        if not next(iter(all_queues)).is_manifest or closest(name, known, VERY_SIMILAR):
            yield _no_queue(target, name, known, facts.namespace)
        return
    cluster_queues = facts.cluster_objects(ClusterQueue)
    if not cluster_queues:
        return
    names = {each.spec.cluster_queue for each in versions}
    # Several files may contain a version each, of which one is applied.
    belongs = chain.from_iterable(map(cluster_queues.all_named, names))
    found = [next(_of_version(target, each, facts), None) for each in belongs]
    if found and None not in found:
        yield from filter(None, found[-1:])
    elif not found and not next(iter(cluster_queues)).is_manifest:
        yield Finding(
            _PATH,
            f"LocalQueue {name} belongs to ClusterQueue {names.pop()}, which doesn't exist. Kueue never "
            f"admits this {target.kind.kind}.",
            "Create the ClusterQueue, or use another queue.",
            Certainty.LIKELY,
        )


def _of_version(target: Target, cluster_queue: ClusterQueue, facts: Facts) -> Iterator[Finding]:
    yield from _not_served(target, cluster_queue, facts)
    yield from _not_active(target, cluster_queue, facts)
    yield from _not_admitted(target, cluster_queue, facts)


def _resized(target: Target) -> Findings:
    """A size that the workload's own autoscaler changes, while Kueue counts the pods."""
    if target.read(Object).metadata.annotations.get(_ELASTIC) == "true":
        return
    for run in runs_in(target.obj):
        for path in filter(run.value, run.life.unqueued):
            yield Finding(
                run.at(path),
                f"Kueue refuses a {run.life.kind} with {path} in a queue, since its size changes after it is "
                "admitted. No pod is created, or the cluster stays suspended.",
                f'Remove {path}. From Kueue 0.14 on, the annotation {_ELASTIC}: "true" admits it if the '
                "feature gate ElasticJobsViaWorkloadSlices is on.",
                Certainty.LIKELY,
            )


def _no_queue(target: Target, name: str, known: Iterable[str], namespace: str) -> Finding:
    others = f"; it has {listed(sorted(known)[:_SHOWN])}" if known else ""
    return Finding(
        _PATH,
        f"Namespace {namespace} has no LocalQueue {name}{others}. Kueue never admits this "
        f"{target.kind.kind}.",
        "Correct the name of the queue, or create it.",
        Certainty.LIKELY,
    )


def _not_served(target: Target, cluster_queue: ClusterQueue, facts: Facts) -> Findings:
    """A namespace that the ClusterQueue does not select (`namespaceSelector`)."""
    selector = cluster_queue.spec.namespace_selector
    if selector is None:
        yield Finding(
            _PATH,
            f"ClusterQueue {cluster_queue.name} has no namespaceSelector, so it serves no namespace. Kueue "
            f"never admits this {target.kind.kind}.",
            "Select this namespace, or set `namespaceSelector: {}` for all.",
            Certainty.CERTAIN,
        )
        return
    labels = facts.namespace_labels()
    if labels is not None and not selector.matches(labels):
        yield Finding(
            _PATH,
            f"The namespaceSelector of ClusterQueue {cluster_queue.name} doesn't select namespace "
            f"{facts.namespace}. Kueue never admits this {target.kind.kind}.",
            "Label the namespace as the selector requires, or use another queue.",
            Certainty.CERTAIN,
        )


def _not_active(target: Target, cluster_queue: ClusterQueue, facts: Facts) -> Findings:
    """A ClusterQueue that names a flavor which does not exist, and so admits nothing (`FlavorNotFound`)."""
    flavors = facts.cluster_objects(ResourceFlavor)
    if flavors is None:
        return
    named = {each.name for group in cluster_queue.spec.resource_groups for each in group.flavors}
    missing = sorted(name for name in named if flavors.named(name) is None)
    others = sorted({each.name for each in flavors} - named)
    if missing and cluster_queue.is_manifest:
        # The flavor may be in files that are not here, unless its name is part of one that no queue names, or
        # has one as its part.
        others = [other for other in others if other not in _named_flavors(facts)]
        missing = [name for name in missing if any(_is_part(name, other) for other in others)]
    if missing:
        exist = f" ({listed(others[:_SHOWN])} exists)" if others else ""
        yield Finding(
            _PATH,
            f"There is no ResourceFlavor {listed(missing[:_SHOWN])}{exist}, but ClusterQueue "
            f"{cluster_queue.name} names it. The queue stays inactive, and Kueue never admits this "
            f"{target.kind.kind}.",
            "Name existing ResourceFlavors in the ClusterQueue, or create them.",
            Certainty.LIKELY,
        )


def _named_flavors(facts: Facts) -> set[str]:
    """The flavors of all ClusterQueues."""
    groups = (each.spec.resource_groups for each in facts.cluster_objects(ClusterQueue) or ())
    return {flavor.name for group in chain.from_iterable(groups) for flavor in group.flavors}


def _is_part(one: str, other: str) -> bool:
    return one in other.split("-") or other in one.split("-")


def _not_admitted(target: Target, cluster_queue: ClusterQueue, facts: Facts) -> Findings:
    asked: dict[str, Decimal] = {}
    first = ""
    for template, pods in _pod_sets(target):
        # Kueue reads the pods as they are written.
        spec = read(template.unprojected, Pod).spec
        first = first or template.spec_path
        for resource, per_pod in _requests(template, spec, facts).items():
            count = per_pod * pods
            asked[resource] = asked.get(resource, Decimal(0)) + count
            obstacles = list(_obstacles(spec, cluster_queue, resource, count, facts))
            if None in obstacles:
                continue
            reasons = [each for each in obstacles if each]
            shown = "; ".join(dict.fromkeys(reasons[:_SHOWN]))
            asks = "A pod requests" if pods == 1 else f"The {pods} pods that run at once request"
            if not obstacles:
                if _may_be_transformed(resource, cluster_queue, facts):
                    continue
                yield Finding(
                    template.spec_path,
                    f"{asks} {formatted(resource, count)} {resource}, which ClusterQueue "
                    f"{cluster_queue.name} doesn't cover. Kueue never admits this {target.kind.kind}, "
                    "unless its configuration excludes that resource.",
                    f"Cover {resource} with a quota in each flavor, or use another queue.",
                    Certainty.LIKELY,
                )
                continue
            yield Finding(
                template.spec_path,
                f"{asks} {formatted(resource, count)} {resource}, but no flavor of ClusterQueue "
                f"{cluster_queue.name} can provide that: {shown}. Kueue never admits this "
                f"{target.kind.kind}.",
                _HINT_QUOTA if any("quota" in each for each in reasons) else _HINT_FLAVOR,
                Certainty.CERTAIN,
            )
    if len(target.templates) > 1:
        yield from _all_together(target, cluster_queue, asked, first, facts)


def _all_together(
    target: Target, cluster_queue: ClusterQueue, asked: Mapping[str, Decimal], path: str, facts: Facts
) -> Findings:
    """The pods of all roles, which Kueue admits together, against the quotas of all flavors."""
    for resource, amount in asked.items():
        groups = [each for each in cluster_queue.spec.resource_groups if resource in each.covered_resources]
        quotas = [
            greatest_quota(cluster_queue, flavor.name, resource, facts)
            for group in groups
            for flavor in group.flavors
        ]
        if not quotas or None in quotas:
            continue
        most = sum((each.amount for each in quotas if each is not None), Decimal(0))
        if amount > most:
            yield Finding(
                path,
                f"All pods of this {target.kind.kind} together request {formatted(resource, amount)} "
                f"{resource}, but ClusterQueue {cluster_queue.name} has a quota of at most "
                f"{formatted(resource, most)}. Kueue never admits it.",
                _HINT_QUOTA,
                Certainty.CERTAIN,
            )


def _pod_sets(target: Target) -> Iterator[tuple[PodTemplate, int]]:
    """The templates with the number of their pods that Kueue must admit together."""
    elastic = any(run.changes_size for run in runs_in(target.obj))
    for template in target.templates:
        role = None if target.kind in (JOB, CRON_JOB) else role_of(target.obj, template)
        pods = _min_pods(target) if role is None else min(role.pods, 1) if elastic else role.pods
        if pods:
            yield template, pods


def _min_pods(target: Target) -> int:
    """The number of pods that Kueue must admit together, all in one flavor: the parallel pods of a Job, or
    fewer if the Job allows that (`podsCount` and `minPodsCount` of Kueue's Job)."""
    if target.kind != JOB:
        return 1
    job = target.read(Job)
    pods = job.spec.parallelism
    pods = min(pods, pods if job.spec.completions is None else job.spec.completions)
    minimum = whole_number(job.metadata.annotations.get(_MIN_PARALLELISM))
    return max(1, pods if minimum is None else min(pods, minimum))


def _requests(template: PodTemplate, spec: PodSpec, facts: Facts) -> dict[str, Decimal]:
    """The resources that a pod requests."""
    accelerators = facts.settings(GpuAffinity).catalogue.requests(spec)
    found = {name: Decimal(count) for name, count in accelerators.items()}
    try:
        # Kueue adds the defaults of LimitRanges (`AdjustResources` in pkg/workload/resources.go).
        return found | written_requests(template, defaults_in(facts, template.workload) or NO_DEFAULTS)
    except ValueError:
        return found


def _obstacles(
    pod: PodSpec, cluster_queue: ClusterQueue, resource: str, count: Decimal, facts: Facts
) -> Iterator[str | None]:
    """For each flavor that covers a resource, why it cannot provide so many; None if it may."""
    flavors = facts.cluster_objects(ResourceFlavor)
    for group in cluster_queue.spec.resource_groups:
        if resource not in group.covered_resources:
            continue
        for quotas in group.flavors:
            name = quotas.name
            quota = greatest_quota(cluster_queue, name, resource, facts)
            if quota is not None and quota.amount < count:
                where = f" in cohort {quota.cohort}" if quota.cohort else ""
                yield f"{name} has a quota of {formatted(resource, quota.amount)}{where}"
            else:
                flavor = None if flavors is None else flavors.named(name)
                yield None if flavor is None else _mismatch(pod, flavor, facts)


def _compared(pod: PodSpec, keys: Set[str]) -> PodSpec:
    """The node selector and affinity that Kueue compares with the labels of a flavor: those with its keys
    (`flavorSelector` in pkg/scheduler/flavorassigner/flavorassigner.go). Old releases compare more keys."""
    terms = [
        NodeSelectorTerm(match_expressions=tuple(each for each in term.match_expressions if each.key in keys))
        for term in required_terms(pod)
    ]
    required = NodeSelector(node_selector_terms=tuple(terms)) if terms else None
    if not all(each.match_expressions for each in terms):
        required = None  # the terms are alternatives, and one has nothing to compare
    return PodSpec(
        node_selector={key: value for key, value in pod.node_selector.items() if key in keys},
        affinity=Affinity(node_affinity=NodeAffinity(required=required)),
    )


def _may_be_transformed(resource: str, cluster_queue: ClusterQueue, facts: Facts) -> bool:
    """Whether Kueue's configuration, which is unknown, may turn an extended resource into one that the queue
    covers and no node has, such as HAMi's `nvidia.com/total-gpucores` (`resources.transformations`).

    Source: https://kueue.sigs.k8s.io/docs/tasks/run/using_hami/
    """
    covered = chain.from_iterable(each.covered_resources for each in cluster_queue.spec.resource_groups)
    vendor_of = facts.settings(GpuAffinity).catalogue.vendor_of
    return "/" in resource and any("/" in name and vendor_of(name) is None for name in covered)


def _mismatch(pod: PodSpec, flavor: ResourceFlavor, facts: Facts) -> str | None:
    name = flavor.name
    tolerating = PodSpec(tolerations=(*pod.tolerations, *flavor.spec.tolerations))
    for taint in flavor.spec.node_taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not tolerates(tolerating, taint):
            return f"{name} has the taint {taint.key}, which the pod doesn't tolerate"
    wanted = flavor.spec.node_labels
    if is_within_limits(pod) and not admits(_compared(pod, wanted.keys()), "", wanted):
        return f"the pod selects other nodes than those of {name}"
    nodes = facts.cluster_objects(Node)
    if not wanted or not nodes or len(nodes) > MAX_NODES:
        return None
    settings = facts.settings(GpuAffinity)
    if not settings.fixed_size or any(wanted.items() <= node.metadata.labels.items() for node in nodes):
        return None
    labels = ", ".join(f"{key}={value}" for key, value in list(wanted.items())[:_SHOWN])
    return f"no node has the labels of {name} ({labels})"


RULE = rule(__name__, check, unowned=True)
