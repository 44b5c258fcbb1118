"""Waits for a pod of the same workload that its controller creates only after this pod is ready.

Source: JobSet v0.10, pkg/controllers (startup_policy.go, depends_on.go, and the names in pkg/util/placement);
LeaderWorkerSet v0.9, pkg/controllers/pod_controller.go.
"""

from __future__ import annotations

import re
from typing import Final

from policies.core.dns import cluster_host, possible_services
from policies.core.facts import Facts
from policies.core.finding import Certainty, Finding
from policies.core.groups import LEADER_READY
from policies.core.services import hides_unready
from policies.core.target import PodTemplate, Target
from policies.kube.group_kinds import JOB_SET, LEADER_WORKER_SET, STATEFUL_SET
from policies.kube.names import is_numbered
from policies.kube.objects.jobs import JobSet
from policies.kube.objects.workloads import LeaderWorkerSet, StatefulSet
from policies.kube.pods import Container
from policies.startup.waits import Wait, init_waits

_OWN_NAME: Final = re.compile(r"hostname|pod_?name|ordinal|pod_?index|\buname\b", re.IGNORECASE)

ORDERED: Final = (STATEFUL_SET, JOB_SET, LEADER_WORKER_SET)
"""Kinds that may create some pods only after others are ready."""

_HOSTS_FILE_READERS: Final = frozenset({"getent", "ping"})
"""Programs that read /etc/hosts, which contains the pod's own full name and address."""


def init_peer_finding(
    target: Target, template: PodTemplate, container: Container, facts: Facts
) -> Finding | None:
    """The finding about an init container that waits for a pod of its own workload."""
    if target.kind not in ORDERED:
        return None
    waits = init_waits(template, container)
    judged = (peer_finding(target, template, wait, container, "Init", facts) for wait in waits)
    return next(filter(None, judged), None)


def peer_finding(
    target: Target, template: PodTemplate, wait: Wait, container: Container, who: str, facts: Facts
) -> Finding | None:
    """A wait for a pod that cannot exist before the first pod is ready.

    Pod N+1 is created when pod N is ready. The first pod's own name does not resolve before that pod is
    ready, unless the Service publishes addresses that are not ready.
    """
    if target.kind != STATEFUL_SET:
        return _group_finding(target, template, wait, container, who, facts)
    named = cluster_host(wait.host.name, template, container)
    peer = _peer(target, named.host, facts.namespace) if named is not None else None
    spec = target.read(StatefulSet).spec
    if named is None or peer is None or spec.pod_management_policy == "Parallel":
        return None
    pod, ordinal = peer
    certainty = Certainty.CERTAIN if named.certain else Certainty.UNDECIDED
    if _reads_own_name(template, wait, container):
        return None
    until = "which the StatefulSet (OrderedReady) creates only after this pod is ready"
    if ordinal == spec.ordinals.start:
        if ".svc." in wait.host.name and wait.host.client in _HOSTS_FILE_READERS:
            return None
        hidden = hides_unready(spec.service_name, facts)
        if hidden is False:
            return None
        until = "whose DNS name exists only after that pod is ready"
        certainty = certainty if hidden else Certainty.UNDECIDED
    return Finding(
        wait.path,
        f"{who} container {container.name} waits for pod {pod}, {until}.",
        "Wait for lower ordinals only, or look for peers once the main container runs, with "
        "podManagementPolicy: Parallel and publishNotReadyAddresses.",
        wait.certainty_of(certainty),
    )


def _group_finding(
    target: Target, template: PodTemplate, wait: Wait, container: Container, who: str, facts: Facts
) -> Finding | None:
    """A wait for a pod that a JobSet or LeaderWorkerSet creates only after this pod is ready."""
    named = cluster_host(wait.host.name, template, container)
    if named is None or _reads_own_name(template, wait, container):
        return None
    network = target.read(JobSet).spec.network.subdomain if target.kind == JOB_SET else ""
    here = (network or target.name, facts.namespace)
    pods = [
        pod
        for service, place, pod in possible_services(named.host, facts.namespace)
        if (service, place) == here
    ]
    later = _later_pods(target, template)
    found = ((pod, why) for pod in pods for prefix, why in later.items() if is_numbered(pod, prefix))
    pod, reason = next(found, ("", ""))
    if not pod:
        return None
    certainty = Certainty.CERTAIN if named.certain else Certainty.UNDECIDED
    return Finding(
        wait.path,
        f"{who} container {container.name} waits for pod {pod}, {reason}.",
        "Wait in the main container, without a probe that depends on it, or let members start in any order.",
        wait.certainty_of(certainty),
    )


def _later_pods(target: Target, template: PodTemplate) -> dict[str, str]:
    """The name prefixes of pods that are created only after the template's pods are ready, and why."""
    if target.kind == LEADER_WORKER_SET:
        waits = target.read(LeaderWorkerSet).spec.startup_policy == LEADER_READY
        leads = template.path.endswith("leaderTemplate")
        why = "which startupPolicy LeaderReady creates only after the leader is ready"
        return {f"{target.name}-0-": why} if waits and leads else {}
    spec = target.read(JobSet).spec
    jobs = spec.replicated_jobs
    own = template.entry
    if own is None or own >= len(jobs):
        return {}
    name = jobs[own].name
    if spec.startup_policy.startup_policy_order == "InOrder":
        later, why = jobs[own + 1 :], "which startupPolicy InOrder creates only after this one is ready"
    else:
        later = tuple(job for job in jobs if any(on.name == name for on in job.depends_on))
        why = f"which is created only after its dependsOn {name}"
    return {f"{target.name}-{job.name}-": why for job in later if job.name != name}


def _peer(target: Target, host: str, namespace: str) -> tuple[str, int] | None:
    """The pod of this StatefulSet that a host such as `pg-0.pg.ns.svc` names, and its ordinal."""
    for service, place, pod in possible_services(host, namespace):
        owner, _, ordinal = pod.rpartition("-")
        if (
            owner == target.name
            and (place, service) == (namespace, target.read(StatefulSet).spec.service_name)
            and ordinal.isascii()
            and ordinal.isascii()
            and ordinal.isdigit()
            and len(ordinal) < 10
        ):
            return pod, int(ordinal)
    return None


def _reads_own_name(template: PodTemplate, wait: Wait, container: Container) -> bool:
    """Whether the wait's script reads the name of its pod: it may then wait for lower ordinals only."""
    return template.cache.once_for(wait.path, _script_reads_own_name, wait.script, container)


def _script_reads_own_name(script: str, container: Container) -> bool:
    return _OWN_NAME.search(script) is not None or any(
        each.field_path.startswith(("metadata.name", "metadata.labels"))
        and each.field_path != "metadata.namespace"
        and bool(each.name)
        and each.name in script
        for each in container.typed.env
    )
