"""service-selects-workers: Services that send requests to pods that do not serve: the workers of a group, or
the pods of a Job or another program next to the servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Final

from msgspec import Struct

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.groups import LWS_NAME, LWS_WORKER
from policies.core.pod_view import PodView
from policies.core.services import selecting, selects, workloads_of
from policies.kube.group_kinds import CRON_JOB, DEPLOYMENT, JOB, LEADER_WORKER_SET, STATEFUL_SET
from policies.kube.json import Json, mapping
from policies.kube.names import listed
from policies.kube.objects.jobs import CronJob, Job
from policies.kube.objects.metadata import LabelSelector, Object
from policies.kube.objects.pods import PodSpec, PodTemplateSpec
from policies.kube.objects.services import Service
from policies.kube.objects.workloads import LeaderWorkerSet, Replicated
from policies.kube.pods import Role
from policies.probes.recognition import GroupRole, Server
from policies.probes.serving import recognised

_MAX: Final = 8
"""Workloads of a Service that are compared."""
_HINT: Final = (
    "Give the pods another label, such as app.kubernetes.io/component, and add it to the Service's selector."
)


class _Group(Struct, frozen=True):
    """Pods of which only the first serves."""

    path: str
    """The field with the labels of the pods that do not serve."""
    labels: Mapping[str, str]
    first: Mapping[str, str]
    """The labels of the first pod that a Service may select it by."""
    size: int
    index: str
    """The label with the number of a pod."""


def check(target: Target, facts: Facts) -> Findings:
    if target.kind in (JOB, CRON_JOB):
        for template in target.templates:
            yield from _run(target, template, facts)
        return
    if target.kind in (DEPLOYMENT, STATEFUL_SET):
        for template in target.templates if facts.whole is not None else ():
            yield from _idle(target, template, facts)
    for group in _groups(target, facts) if target.kind != DEPLOYMENT else ():
        for service in selecting(group.labels, facts):
            if service.has_address and selects(service, group.first):
                yield Finding(
                    group.path,
                    f"Service {service.name} also selects the workers, but only the leader serves. "
                    f"{group.size - 1} of {group.size} requests fail.",
                    f'Add {group.index}: "0" to the Service\'s selector, or a label that only leaders have.',
                )


def _run(target: Target, template: PodTemplate, facts: Facts) -> Findings:
    """Findings about the pods of a Job, which are ready while they run, and to which a Service of servers
    sends by the number of a port."""
    typed = template.typed
    ports = {port for container in template.containers() for port in container.tcp_ports}
    if _checks_readiness(typed.spec) or any(_servers(template, facts)):
        return
    for service in selecting(typed.metadata.labels, facts):
        asked = _targets(service)
        if not service.has_address or not asked or not all(isinstance(port, int) for port in asked):
            continue  # a pod without the named port is no endpoint
        selector = LabelSelector(match_labels=service.spec.selector)
        served = [each for _, each in islice(workloads_of(selector, facts), _MAX)]
        served.sort(key=lambda each: asked.isdisjoint(_ports_of(each)))
        if served and asked.isdisjoint(ports) and not _has_earlier(target, service, facts):
            yield Finding(
                f"{template.metadata_path}.labels",
                f"Service {service.name} of {served[0].kind} {served[0].name} also selects these pods. While "
                "they run, their share of the requests is refused.",
                _HINT,
                Certainty.CERTAIN if ports else Certainty.LIKELY,  # without a declared port, it may be any
            )
            return


def _has_earlier(target: Target, service: Service, facts: Facts) -> bool:
    """Whether a Job or CronJob with an earlier name has the finding among manifests: one edit of the Service
    is right for all."""
    if facts.whole is None:
        return False
    jobs = facts.whole.typed(JOB, facts.namespace, Job)
    single = ((each, each.spec.template) for each in jobs if not each.metadata.owner_references)
    scheduled = (
        (each, each.spec.job_template.spec.template)
        for each in facts.whole.typed(CRON_JOB, facts.namespace, CronJob)
    )
    own = target.read(Object).rank
    return any(
        obj.rank < own and selects(service, each.metadata.labels) and not _serves(each)
        for obj, each in chain(single, scheduled)
    )


def _idle(target: Target, template: PodTemplate, facts: Facts) -> Findings:
    """A finding about pods that do not listen on the port to which a Service sends for another workload, at
    the first such workload by name: one edit of the labels is right for all."""
    typed = template.typed
    ports = {port for container in template.containers() for port in container.tcp_ports}
    servers = list(_servers(template, facts))
    if {server.role for server in servers} != {GroupRole.WORKER} and not all(
        container.tcp_ports for container in template.view.running
    ):
        return  # a container that declares no port may listen on any
    ports |= {server.preset.port for server in servers if server.role is not GroupRole.WORKER}
    own = target.read(Object).rank
    services = [each for each in selecting(typed.metadata.labels, facts) if each.has_address]
    # Manifests may have several versions of a Service, of which one is applied, next to its workload.
    own_services = {each.name for each in services if not _targets(each).isdisjoint(ports)}
    for service in services:
        targets = _targets(service)
        asked = {port for port in targets if isinstance(port, int)}
        if service.name in own_services or not asked or asked != targets:
            continue
        selector = LabelSelector(match_labels=service.spec.selector)
        others = [each for each in islice(workloads_of(selector, facts), _MAX) if each[1].name != target.name]
        serving = (other for obj, other in others if _serves_on(asked, obj, other, facts))
        declared = ((other, _ports_of(other)) for _, other in others)
        earlier = any(each and asked.isdisjoint(each) and other.rank < own for other, each in declared)
        if not earlier and (other := next(serving, None)) is not None:
            numbers = f"port{'s' * (len(asked) > 1)} {listed(sorted(map(str, asked)))}"
            yield Finding(
                f"{template.metadata_path}.labels",
                f"Service {service.name} of {other.kind} {other.name} also selects these pods, which don't "
                f"listen on {numbers}. Their share of the requests is refused.",
                _HINT,
                Certainty.LIKELY,
            )
            return


def _targets(service: Service) -> set[int | str | None]:
    """The ports of its pods to which a Service sends, by number or name."""
    return {port.target_port or port.port for port in service.spec.ports}


def _serves_on(ports: set[int], obj: Json, workload: Replicated, facts: Facts) -> bool:
    """Whether the pods of a workload declare all the ports, or a recognised server serves on one of them."""
    view = facts.view(mapping(obj, "spec", "template"))
    return ports <= _ports_of(workload) or _has_server(view, ports, facts)


def _has_server(pod: PodView, ports: set[int], facts: Facts) -> bool:
    """Whether a recognised server serves on one of the ports."""
    return any(
        container.role is Role.MAIN
        and (server := recognised(container, facts)) is not None
        and server.role is GroupRole.SERVES
        and not ports.isdisjoint({*container.tcp_ports, server.preset.port})
        for container in pod.containers
    )


def _groups(target: Target, facts: Facts) -> Iterator[_Group]:
    if target.kind == LEADER_WORKER_SET:
        group, index = target.read(LeaderWorkerSet).spec.leader_worker_template, LWS_WORKER
        leader, workers, size = group.leader_template, group.worker_template, group.size
        path = "spec.leaderWorkerTemplate.workerTemplate.metadata.labels"
        roles = {each.steps[-1]: {it.role for it in _servers(each, facts)} for each in target.templates}
        headless = roles.get("workerTemplate") == {GroupRole.WORKER} and not _checks_readiness(workers.spec)
        idle = headless or not _serves(workers)
        answers = GroupRole.SERVES in roles.get("leaderTemplate", ())
        if leader is not None and size > 1 and idle and (answers or _serves(leader)):
            first = {**leader.metadata.labels, LWS_NAME: target.name}
            yield _Group(path, {**workers.metadata.labels, LWS_NAME: target.name}, first, size, index)
        if leader is not None:
            return
        own = {LWS_NAME: target.name}
    else:
        size, index, own = target.replicas, "apps.kubernetes.io/pod-index", {}
    for template in target.templates if size > 1 else ():
        if _checks_readiness(template.typed.spec):
            continue  # a check that the workers fail keeps them out of every Service
        if any(server.spans_pods for server in _servers(template, facts)):
            labels = {**template.typed.metadata.labels, **own}
            yield _Group(f"{template.metadata_path}.labels", labels, labels, size, index)


def _serves(template: PodTemplateSpec) -> bool:
    """Whether a container of the pods declares a port or checks its readiness."""
    return _checks_readiness(template.spec) or any(each.ports for each in template.spec.containers)


def _ports_of(workload: Replicated) -> set[int | None]:
    """The ports that the containers of a workload declare."""
    return {port.container_port for each in workload.spec.template.spec.containers for port in each.ports}


def _checks_readiness(pod: PodSpec) -> bool:
    """Whether a container of the pod checks its readiness: while it fails, no Service sends to the pod."""
    return any(each.readiness_probe is not None for each in pod.containers)


def _servers(template: PodTemplate, facts: Facts) -> Iterator[Server]:
    """The recognised servers of the main containers."""
    found = (recognised(container, facts) for container in template.containers(Role.MAIN))
    return (server for server in found if server is not None)


RULE = rule(__name__, check, (DEPLOYMENT, LEADER_WORKER_SET, STATEFUL_SET, JOB, CRON_JOB))
