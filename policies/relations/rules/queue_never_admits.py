"""queue-never-admits: workloads in a queue of Kueue that cannot admit them.

Read in Kueue's sources (0.14 and main): `pkg/scheduler/flavorassigner`, `pkg/controller/jobs/job`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from policies.accelerators.node_affinity import tolerates
from policies.accelerators.requests import GpuAffinity
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.facts import named_in
from policies.core.listing import Listing, is_manifest
from policies.core.resources import Resource
from policies.kube.group_kinds import JOB
from policies.kube.json import Json, integer, mapping, maps, strings, text
from policies.kube.metadata import controller, labels_of
from policies.kube.names import listed
from policies.relations.cohorts import greatest_quota

_QUEUE: Final = "kueue.x-k8s.io/queue-name"
_PATH: Final = f"metadata.labels[{_QUEUE}]"
_LEAST_PODS: Final = "kueue.x-k8s.io/job-min-parallelism"
_DIGITS: Final = 10
_SHOWN: Final = 4
_MOST_NODES: Final = 2_000
_HINT_QUOTA: Final = "Ask for less, use another queue, or raise the quota of the ClusterQueue."


def check(target: Target, facts: Facts) -> Findings:
    name = labels_of(target.obj).get(_QUEUE)
    every = facts.cluster.listing(Resource.LOCAL_QUEUES)
    if not name or not isinstance(name, str) or not every or controller(target.obj) is not None:
        return
    own = facts.listing(Resource.LOCAL_QUEUES)
    queue = named_in(own, name)
    if queue is None:
        if own or not is_manifest(every[0]):
            yield _no_queue(target, name, own or (), facts.namespace)
        return
    clusters = facts.cluster.listing(Resource.CLUSTER_QUEUES)
    above = text(queue, "spec", "clusterQueue")
    cluster = named_in(clusters, above)
    if cluster is not None:
        yield from islice(_unfit(target, cluster, facts), 1)
    elif clusters and not is_manifest(clusters[0]):
        yield Finding(
            _PATH,
            f"LocalQueue {name} belongs to ClusterQueue {above}, which does not exist: Kueue never admits "
            f"this {target.kind.kind}.",
            "Create the ClusterQueue, or use another queue.",
            Certainty.LIKELY,
        )


def _no_queue(target: Target, name: str, own: Listing | tuple[()], namespace: str) -> Finding:
    known = sorted(text(each, "metadata", "name") for each in own)[:_SHOWN]
    there = f"; it has {listed(known)}" if known else ""
    return Finding(
        _PATH,
        f"Namespace {namespace} has no LocalQueue {name}{there}: Kueue never admits this {target.kind.kind}.",
        "Correct the name of the queue, or create it.",
        Certainty.LIKELY,
    )


def _unfit(target: Target, cluster: Json, facts: Facts) -> Findings:
    catalogue = facts.settings(GpuAffinity).catalogue
    pods = _least_pods(target)
    for template in target.templates:
        for resource, each in catalogue.requests(template.unprojected).items():
            obstacles = list(_obstacles(template, cluster, resource, each * pods, facts))
            if not obstacles or None in obstacles:
                continue
            said = "; ".join(dict.fromkeys(each for each in obstacles[:_SHOWN] if each))
            asks = "A pod asks" if pods == 1 else f"The {pods} pods that run at once ask"
            yield Finding(
                template.spec_path,
                f"{asks} for {each * pods} {resource}, and no flavor of ClusterQueue "
                f"{text(cluster, 'metadata', 'name')} can give that: {said}. Kueue never admits this "
                f"{target.kind.kind}.",
                _HINT_QUOTA if any("quota" in (each or "") for each in obstacles) else _HINT_FLAVOR,
                Certainty.SURE,
            )


def _least_pods(target: Target) -> int:
    """How many pods Kueue admits together at the least, all in one flavor: those of a Job that run at once,
    or fewer if the Job allows that (`podsCount` and `minPodsCount` of Kueue's Job)."""
    if target.kind != JOB:
        return 1
    pods = integer(target.spec, "parallelism", default=1)
    pods = min(pods, integer(target.spec, "completions", default=pods))
    least = text(target.obj, "metadata", "annotations", _LEAST_PODS)
    return max(1, min(pods, int(least) if least.isdecimal() and len(least) < _DIGITS else pods))


_HINT_FLAVOR: Final = "Tolerate the taint of the flavor, correct its labels, or use another queue."


def _obstacles(
    template: PodTemplate, cluster: Json, resource: str, count: int, facts: Facts
) -> Iterator[str | None]:
    """Why each flavor that covers a resource cannot take so many; None for one that may."""
    flavors = facts.cluster.listing(Resource.FLAVORS)
    for group in maps(cluster, "spec", "resourceGroups"):
        if resource not in strings(group, "coveredResources"):
            continue
        for quotas in maps(group, "flavors"):
            name = text(quotas, "name")
            most = greatest_quota(cluster, name, resource, facts.cluster)
            if most is not None and most.amount < count:
                where = f" in cohort {most.cohort}" if most.cohort else ""
                yield f"{name} has a quota of {most.amount}{where}"
            else:
                flavor = named_in(flavors, name)
                yield None if flavor is None else _misfit(template, name, flavor, facts)


def _misfit(template: PodTemplate, name: str, flavor: Json, facts: Facts) -> str | None:
    tolerations = [*maps(template.unprojected, "spec", "tolerations"), *maps(flavor, "spec", "tolerations")]
    pod: Json = {"spec": {"tolerations": tolerations}}
    for taint in maps(flavor, "spec", "nodeTaints"):
        if text(taint, "effect") in ("NoSchedule", "NoExecute") and not tolerates(pod, taint):
            return f"{name} has the taint {text(taint, 'key')}, which the pod does not tolerate"
    wanted = mapping(flavor, "spec", "nodeLabels")
    nodes = facts.nodes()
    if not wanted or not nodes or len(nodes) > _MOST_NODES:
        return None
    settings = facts.settings(GpuAffinity)
    if not settings.fixed_size or any(wanted.items() <= labels_of(node).items() for node in nodes):
        return None
    labels = ", ".join(f"{key}={value}" for key, value in list(wanted.items())[:_SHOWN])
    return f"no node has the labels of {name} ({labels})"


RULE = rule(__name__, check)
