"""queue-never-admits: workloads in a queue of Kueue that cannot admit them.

Semantics: `pkg/scheduler/flavorassigner` and `pkg/controller/jobs/job` of Kueue 0.14.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from policies.accelerators.node_affinity import tolerates
from policies.accelerators.requests import GpuAffinity
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.facts import find_by_name
from policies.core.listing import Listing, is_manifest
from policies.core.resources import Resource
from policies.kube.group_kinds import JOB
from policies.kube.json import Json, integer, mapping, maps, strings, text
from policies.kube.metadata import labels_of
from policies.kube.names import listed
from policies.relations.cohorts import greatest_quota

_QUEUE: Final = "kueue.x-k8s.io/queue-name"
_PATH: Final = f"metadata.labels[{_QUEUE}]"
_MIN_PARALLELISM: Final = "kueue.x-k8s.io/job-min-parallelism"
_DIGITS: Final = 10
_SHOWN: Final = 4
_MAX_NODES: Final = 2_000
_HINT_QUOTA: Final = "Ask for less, use another queue, or raise the quota of the ClusterQueue."
_HINT_FLAVOR: Final = "Tolerate the taint of the flavor, correct its labels, or use another queue."


def check(target: Target, facts: Facts) -> Findings:
    name = text(target.obj, "metadata", "labels", _QUEUE)
    all_queues = facts.cluster.listing(Resource.LOCAL_QUEUES)
    if not name or not all_queues or target.has_controller:
        return
    queues = facts.listing(Resource.LOCAL_QUEUES)
    queue = find_by_name(queues, name)
    if queue is None:
        if queues or not is_manifest(all_queues[0]):
            yield _no_queue(target, name, queues or (), facts.namespace)
        return
    cluster_queues = facts.cluster.listing(Resource.CLUSTER_QUEUES)
    cluster_name = text(queue, "spec", "clusterQueue")
    cluster_queue = find_by_name(cluster_queues, cluster_name)
    if cluster_queue is not None:
        yield from islice(_not_admitted(target, cluster_queue, facts), 1)
    elif cluster_queues and not is_manifest(cluster_queues[0]):
        yield Finding(
            _PATH,
            f"LocalQueue {name} belongs to ClusterQueue {cluster_name}, which does not exist: Kueue never "
            f"admits this {target.kind.kind}.",
            "Create the ClusterQueue, or use another queue.",
            Certainty.LIKELY,
        )


def _no_queue(target: Target, name: str, queues: Listing | tuple[()], namespace: str) -> Finding:
    known = sorted(text(each, "metadata", "name") for each in queues)[:_SHOWN]
    others = f"; it has {listed(known)}" if known else ""
    return Finding(
        _PATH,
        f"Namespace {namespace} has no LocalQueue {name}{others}: Kueue never admits this "
        f"{target.kind.kind}.",
        "Correct the name of the queue, or create it.",
        Certainty.LIKELY,
    )


def _not_admitted(target: Target, cluster_queue: Json, facts: Facts) -> Findings:
    catalogue = facts.settings(GpuAffinity).catalogue
    pods = _min_pods(target)
    for template in target.templates:
        for resource, per_pod in catalogue.requests(template.unprojected).items():
            obstacles = list(_obstacles(template, cluster_queue, resource, per_pod * pods, facts))
            if not obstacles or None in obstacles:
                continue
            reasons = [each for each in obstacles if each]
            shown = "; ".join(dict.fromkeys(reasons[:_SHOWN]))
            asks = "A pod asks" if pods == 1 else f"The {pods} pods that run at once ask"
            yield Finding(
                template.spec_path,
                f"{asks} for {per_pod * pods} {resource}, and no flavor of ClusterQueue "
                f"{text(cluster_queue, 'metadata', 'name')} can give that: {shown}. Kueue never admits this "
                f"{target.kind.kind}.",
                _HINT_QUOTA if any("quota" in each for each in reasons) else _HINT_FLAVOR,
                Certainty.CERTAIN,
            )


def _min_pods(target: Target) -> int:
    """The number of pods that Kueue must admit together, all in one flavor: the parallel pods of a Job, or
    fewer if the Job allows that (`podsCount` and `minPodsCount` of Kueue's Job)."""
    if target.kind != JOB:
        return 1
    pods = integer(target.spec, "parallelism", default=1)
    pods = min(pods, integer(target.spec, "completions", default=pods))
    minimum = text(target.obj, "metadata", "annotations", _MIN_PARALLELISM)
    return max(1, min(pods, int(minimum) if minimum.isdecimal() and len(minimum) < _DIGITS else pods))


def _obstacles(
    template: PodTemplate, cluster_queue: Json, resource: str, count: int, facts: Facts
) -> Iterator[str | None]:
    """For each flavor that covers a resource, why it cannot provide so many; None if it may."""
    flavors = facts.cluster.listing(Resource.FLAVORS)
    for group in maps(cluster_queue, "spec", "resourceGroups"):
        if resource not in strings(group, "coveredResources"):
            continue
        for quotas in maps(group, "flavors"):
            name = text(quotas, "name")
            quota = greatest_quota(cluster_queue, name, resource, facts.cluster)
            if quota is not None and quota.amount < count:
                where = f" in cohort {quota.cohort}" if quota.cohort else ""
                yield f"{name} has a quota of {quota.amount}{where}"
            else:
                flavor = find_by_name(flavors, name)
                yield None if flavor is None else _mismatch(template, name, flavor, facts)


def _mismatch(template: PodTemplate, name: str, flavor: Json, facts: Facts) -> str | None:
    tolerations = [*maps(template.unprojected, "spec", "tolerations"), *maps(flavor, "spec", "tolerations")]
    pod: Json = {"spec": {"tolerations": tolerations}}
    for taint in maps(flavor, "spec", "nodeTaints"):
        if text(taint, "effect") in ("NoSchedule", "NoExecute") and not tolerates(pod, taint):
            return f"{name} has the taint {text(taint, 'key')}, which the pod does not tolerate"
    wanted = mapping(flavor, "spec", "nodeLabels")
    nodes = facts.nodes()
    if not wanted or not nodes or len(nodes) > _MAX_NODES:
        return None
    settings = facts.settings(GpuAffinity)
    if not settings.fixed_size or any(wanted.items() <= labels_of(node).items() for node in nodes):
        return None
    labels = ", ".join(f"{key}={value}" for key, value in list(wanted.items())[:_SHOWN])
    return f"no node has the labels of {name} ({labels})"


RULE = rule(__name__, check)
