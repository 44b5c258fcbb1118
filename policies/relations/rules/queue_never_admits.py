"""queue-never-admits: workloads in a queue of Kueue that cannot admit them.

Semantics: `pkg/scheduler/flavorassigner` and `pkg/controller/jobs/job` of Kueue 0.14.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from policies.accelerators.node_affinity import tolerates
from policies.accelerators.requests import GpuAffinity
from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import JOB
from policies.kube.names import listed
from policies.kube.objects.jobs import Job
from policies.kube.objects.metadata import Object
from policies.kube.objects.nodes import Node
from policies.kube.objects.pods import Pod, PodSpec
from policies.kube.objects.queues import ClusterQueue, LocalQueue, ResourceFlavor
from policies.kube.objects.reading import read
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
    name = target.read(Object).metadata.labels.get(_QUEUE)
    all_queues = facts.cluster_objects(LocalQueue)
    if not name or not all_queues:
        return
    queues = facts.objects(LocalQueue)
    queue = None if queues is None else queues.named(name)
    if queue is None:
        if queues or not next(iter(all_queues)).is_manifest:
            yield _no_queue(target, name, queues or (), facts.namespace)
        return
    cluster_queues = facts.cluster_objects(ClusterQueue)
    cluster_name = queue.spec.cluster_queue
    cluster_queue = None if cluster_queues is None else cluster_queues.named(cluster_name)
    if cluster_queue is not None:
        yield from islice(_not_admitted(target, cluster_queue, facts), 1)
    elif cluster_queues and not next(iter(cluster_queues)).is_manifest:
        yield Finding(
            _PATH,
            f"LocalQueue {name} belongs to ClusterQueue {cluster_name}, which does not exist: Kueue never "
            f"admits this {target.kind.kind}.",
            "Create the ClusterQueue, or use another queue.",
            Certainty.LIKELY,
        )


def _no_queue(target: Target, name: str, queues: Iterable[LocalQueue], namespace: str) -> Finding:
    known = sorted(each.name for each in queues)[:_SHOWN]
    others = f"; it has {listed(known)}" if known else ""
    return Finding(
        _PATH,
        f"Namespace {namespace} has no LocalQueue {name}{others}: Kueue never admits this "
        f"{target.kind.kind}.",
        "Correct the name of the queue, or create it.",
        Certainty.LIKELY,
    )


def _not_admitted(target: Target, cluster_queue: ClusterQueue, facts: Facts) -> Findings:
    catalogue = facts.settings(GpuAffinity).catalogue
    pods = _min_pods(target)
    for template in target.templates:
        # Kueue reads the pods as they are written.
        spec = read(template.unprojected, Pod).spec
        for resource, per_pod in catalogue.requests(spec).items():
            obstacles = list(_obstacles(spec, cluster_queue, resource, per_pod * pods, facts))
            if not obstacles or None in obstacles:
                continue
            reasons = [each for each in obstacles if each]
            shown = "; ".join(dict.fromkeys(reasons[:_SHOWN]))
            asks = "A pod asks" if pods == 1 else f"The {pods} pods that run at once ask"
            yield Finding(
                template.spec_path,
                f"{asks} for {per_pod * pods} {resource}, and no flavor of ClusterQueue "
                f"{cluster_queue.name} can give that: {shown}. Kueue never admits this "
                f"{target.kind.kind}.",
                _HINT_QUOTA if any("quota" in each for each in reasons) else _HINT_FLAVOR,
                Certainty.CERTAIN,
            )


def _min_pods(target: Target) -> int:
    """The number of pods that Kueue must admit together, all in one flavor: the parallel pods of a Job, or
    fewer if the Job allows that (`podsCount` and `minPodsCount` of Kueue's Job)."""
    if target.kind != JOB:
        return 1
    job = target.read(Job)
    pods = job.spec.parallelism
    pods = min(pods, pods if job.spec.completions is None else job.spec.completions)
    minimum = job.metadata.annotations.get(_MIN_PARALLELISM, "")
    return max(1, min(pods, int(minimum) if minimum.isdecimal() and len(minimum) < _DIGITS else pods))


def _obstacles(
    pod: PodSpec, cluster_queue: ClusterQueue, resource: str, count: int, facts: Facts
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
                yield f"{name} has a quota of {quota.amount}{where}"
            else:
                flavor = None if flavors is None else flavors.named(name)
                yield None if flavor is None else _mismatch(pod, flavor, facts)


def _mismatch(pod: PodSpec, flavor: ResourceFlavor, facts: Facts) -> str | None:
    name = flavor.name
    tolerating = PodSpec(tolerations=(*pod.tolerations, *flavor.spec.tolerations))
    for taint in flavor.spec.node_taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not tolerates(tolerating, taint):
            return f"{name} has the taint {taint.key}, which the pod does not tolerate"
    wanted = flavor.spec.node_labels
    nodes = facts.cluster_objects(Node)
    if not wanted or not nodes or len(nodes) > _MAX_NODES:
        return None
    settings = facts.settings(GpuAffinity)
    if not settings.fixed_size or any(wanted.items() <= node.metadata.labels.items() for node in nodes):
        return None
    labels = ", ".join(f"{key}={value}" for key, value in list(wanted.items())[:_SHOWN])
    return f"no node has the labels of {name} ({labels})"


RULE = rule(__name__, check, unowned=True)
