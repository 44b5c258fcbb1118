"""group-never-forms: a server over several pods that cannot find each other before they are ready."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from policies.accelerators.parallelism import devices, per_copy
from policies.containers.programs import option, programs
from policies.core.contracts import Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.core.services import hides_unready, selecting
from policies.kube.group_kinds import DEPLOYMENT, STATEFUL_SET
from policies.kube.json import mapping
from policies.kube.objects.workloads import Replicated, StatefulSet
from policies.kube.pods import Container, Role
from policies.probes.recognition import Server
from policies.probes.serving import recognised, starts_ray_for

_HOST: Final = re.compile(r"[a-z0-9][a-z0-9.-]*")
_MAX_WORKLOADS: Final = 64


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        for container in template.containers(Role.MAIN):
            server = recognised(container, facts)
            if server is None or not _waits_to_be_ready(server, container):
                continue
            ready = f"Container {container.name} ({server.name}) is ready only after all pods have joined"
            if target.kind == STATEFUL_SET and server.spans_pods:
                yield from _members(target, container, ready, facts)
            elif server.spans_pods or (
                starts_ray_for(server, template.view, facts) and per_copy(server) > devices(container) > 0
            ):
                yield from _joined_by(template, ready, facts)


def _waits_to_be_ready(server: Server, container: Container) -> bool:
    """Whether its readinessProbe waits for the whole group."""
    probe = container.typed.readiness_probe
    if probe is None:
        return False
    path = None if probe.http_get is None else probe.http_get.path
    return not server.preset.members_env or path == server.preset.ready_path


def _members(target: Target, container: Container, ready: str, facts: Facts) -> Findings:
    """A finding about the other pods of a StatefulSet."""
    spec = target.read(StatefulSet).spec
    hosts = (host for word in container.typed.argv for host in _HOST.findall(word))
    named = next((host for host in hosts if _is_peer(host, target.name, spec.service_name)), "")
    if spec.pod_management_policy != "Parallel":
        yield Finding(
            "spec.podManagementPolicy",
            f"{ready}, but the StatefulSet (OrderedReady) creates the second pod only after the first is "
            "ready.",
            "Set podManagementPolicy: Parallel.",
        )
    elif named and hides_unready(spec.service_name, facts):
        yield Finding(
            "spec.serviceName",
            f"{ready}, but Service {spec.service_name} publishes only ready pods, so the name {named} "
            "doesn't resolve before that.",
            f"Set publishNotReadyAddresses: true on Service {spec.service_name}.",
        )


def _is_peer(host: str, name: str, service: str) -> bool:
    """Whether a host is a pod of a StatefulSet: llm-0.llm, or llm-0.llm.ml.svc."""
    pod, _, domain = host.partition(".")
    owner, _, ordinal = pod.rpartition("-")
    return owner == name and ordinal.isdecimal() and domain.partition(".")[0] == service


def _joined_by(template: PodTemplate, ready: str, facts: Facts) -> Findings:
    """A finding about workers of another workload that join by a Service of these pods."""
    if facts.whole is None:
        return  # the webhook's caches keep no containers of other workloads
    services = selecting(template.typed.metadata.labels, facts)
    hidden = {each.name for each in services if not each.spec.publish_not_ready_addresses}
    for worker, service in _workers(facts) if hidden else ():
        if service in hidden:
            yield Finding(
                f"{template.metadata_path}.labels",
                f"{ready}, but Service {service}, by which {worker} joins, sends only to ready pods. The "
                "group never forms.",
                f"Set publishNotReadyAddresses: true on Service {service}, and serve clients by another one.",
            )
            return


def _workers(facts: Facts) -> Iterator[tuple[str, str]]:
    """The workloads that join a Ray cluster at a host, and the first part of its name."""
    workloads = facts.objects(Replicated)
    known = () if workloads is None else zip(workloads.listing, workloads, strict=True)
    for obj, workload in islice(known, _MAX_WORKLOADS):
        for container in facts.view(mapping(obj, "spec", "template")).containers:
            for program in programs(container):
                address = option(program, "--address") if program[:2] == ("ray", "start") else None
                if address:
                    yield f"{workload.kind} {workload.name}", re.split(r"[.:]", address)[0]


RULE = rule(__name__, check, (STATEFUL_SET, DEPLOYMENT), requires=(PodFeature.READINESS,))
