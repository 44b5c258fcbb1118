"""service-port-unknown: Services whose targetPort is a name that no container of their pods has, those and
InferencePools that send to a port or an address on which the server doesn't listen, routes to a port that a
Service doesn't have, and monitors that ask for a port which nothing has."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.data import table
from policies.core.groups import labels_of_pods
from policies.core.services import asked_ports, named_ports, pools_of, selecting, selects_only, unlike_its_own
from policies.kube.group_kinds import LEADER_WORKER_SET, ROLLOUT, SERVICE, SERVING
from policies.kube.names import listed
from policies.kube.objects.reading import readable
from policies.kube.objects.services import Service
from policies.kube.objects.workloads import Replicated, Rollout
from policies.kube.pods import Container, Role
from policies.probes.endpoints import listen_everywhere
from policies.probes.health import listens_on_loopback, served_port
from policies.probes.preset import known_presets
from policies.probes.recognition import Server
from policies.probes.serving import recognised
from policies.relations.monitors import unscraped

_MAX: Final = 4
"""Findings for one workload."""
_INJECTED: Final = ("inject", "sidecar")
"""Parts of labels and annotations that request further containers."""


def check(target: Target, facts: Facts) -> Findings:
    leads = target.kind == LEADER_WORKER_SET
    if not target.templates or (len(target.templates) > 1 and not leads):
        return
    template = target.templates[0]
    if not template.containers():
        return
    if not leads:  # the Service may select pods of other LeaderWorkerSets, which have the port
        yield from _by_name(target, template, facts)
        yield from _by_route(target, template, facts)
        yield from _by_label(target, template, facts)
        yield from _by_monitor(target, template, facts)
    containers = template.containers(Role.MAIN)
    server = recognised(containers[0], facts) if len(containers) == 1 else None
    if server is not None and not _is_added_to(template):
        yield from _by_number(target, template, containers[0], server, facts)
        yield from _by_address(target, template, containers[0], server, facts)


def _by_number(
    target: Target, template: PodTemplate, container: Container, server: Server, facts: Facts
) -> Findings:
    listens = served_port(template.view, container, facts)
    closed = None if listens is None else _closed_ports(server, container, listens)
    if not closed:
        return
    for sender, port in islice(_senders(target, template, facts, closed), _MAX):
        own = port == server.preset.port
        but = f"the default of {server.name}, but this server" if own else f"but {server.name}"
        yield Finding(
            template.at(container),
            f"{sender} sends to port {port}, {but} listens on port {listens}. Connections to it are refused.",
            f"Set the target port to {listens}.",
            Certainty.LIKELY,
        )


def _by_address(
    target: Target, template: PodTemplate, container: Container, server: Server, facts: Facts
) -> Findings:
    """A finding about a Service of a server that listens only on loopback."""
    if not listens_on_loopback(template.view, container, facts):
        return
    for service in selecting(labels_of_pods(target, template), facts):
        if service.has_address and selects_only(service, target, facts) is not None:
            yield Finding(
                template.at(container),
                f"Service {service.name} sends requests to {server.name}, which listens only on loopback. "
                "Connections from other pods are refused.",
                f"{listen_everywhere(server.preset)}.",
                Certainty.LIKELY,
            )
            return


def _by_route(target: Target, template: PodTemplate, facts: Facts) -> Findings:
    """Findings about Ingresses, routes and InferencePools that ask a Service for a port that it lacks."""
    for service in selecting(template.typed.metadata.labels, facts):
        lacking = (each for each in asked_ports(service.name, facts) if not _has_port(service, each[1]))
        for sender, port in islice(lacking, _MAX):
            if facts.whole is None or selects_only(service, target, facts) is None:
                break
            named = (readable(obj, Service) for obj in facts.whole.every(SERVICE, facts.namespace))
            if any(each is None or (each.name == service.name and _has_port(each, port)) for each in named):
                continue  # another variant of the Service has it
            known = listed([f"{it.port}{f' ({it.name})' if it.name else ''}" for it in service.spec.ports])
            yield Finding(
                template.at(template.containers()[0]),
                f"{sender} sends to port {port} of Service {service.name}, in front of these pods, but the "
                f"Service has only {known or 'no port'}. The requests fail.",
                f"Set a port of the Service in {sender}.",
                Certainty.LIKELY,
            )


def _by_label(target: Target, template: PodTemplate, facts: Facts) -> Findings:
    """A finding about a Service of the workload's name that selects other labels than its pods have."""
    if target.kind == ROLLOUT and target.read(Rollout).spec.strategy.relabels:
        return
    labels = labels_of_pods(target, template)
    found = unlike_its_own(target, labels, facts) if labels else None
    if found is not None:
        service, key = found
        yield Finding(
            f"{template.metadata_path}.labels[{key}]",
            f"Service {service.name} selects pods with {key}={service.spec.selector[key]}, but those of this "
            f"{target.kind.kind} have {labels[key]}. It selects no other pods either: it has no endpoints.",
            f"Select {key}={labels[key]} in the Service, by a label that nobody changes.",
            Certainty.LIKELY,
        )


def _by_monitor(target: Target, template: PodTemplate, facts: Facts) -> Findings:
    if _is_added_to(template):
        return
    for monitor, port, what in islice(unscraped(target, template, facts), _MAX):
        form = "name" if isinstance(port, str) else "number"
        yield Finding(
            template.at(template.containers()[0]),
            f"{monitor} asks for port {port}, but no {what} has that {form}. Prometheus scrapes none of "
            "these pods, and what scales by their metrics never does.",
            f"Name a port in {monitor} that is there.",
            Certainty.LIKELY,
        )


def _has_port(service: Service, port: int | str) -> bool:
    return any(port in (each.port, each.name) for each in service.spec.ports)


def _closed_ports(server: Server, container: Container, listens: int) -> frozenset[int]:
    """Ports that people send to by mistake: the server's default if it listens on another, and the defaults
    of other servers."""
    preset, typed = server.preset, container.typed
    closed = {preset.port} if server.configured(preset.port_flags, preset.port_env) == str(listens) else set()
    if preset.only_port and not server.has_env_from and not server.may_hold_options:
        written = "\n".join((*typed.command, *typed.args, *(each.value for each in typed.env)))
        closed.update(port for port in _default_ports() - {preset.port} if str(port) not in written)
    return frozenset(closed - {listens, *container.tcp_ports})


@table
def _default_ports() -> frozenset[int]:
    """The default ports of all servers."""
    return frozenset(preset.port for preset in known_presets().values()) - {0}


def _senders(
    target: Target, template: PodTemplate, facts: Facts, closed: frozenset[int]
) -> Iterator[tuple[str, int]]:
    """The Services and InferencePools that send requests for the pods to a closed port, and this port."""
    labels = labels_of_pods(target, template)
    for service in selecting(labels, facts):
        numbers = (each.port if each.target_port is None else each.target_port for each in service.spec.ports)
        port = next((each for each in numbers if isinstance(each, int) and each in closed), None)
        if port and service.has_address and selects_only(service, target, facts) is not None:
            yield f"Service {service.name}", port
    for pool in pools_of(labels, facts):
        port = next((each for each in pool.ports if each in closed), None)
        if port:
            yield f"InferencePool {pool.name}", port


def _by_name(target: Target, template: PodTemplate, facts: Facts) -> Findings:
    found = (
        (service, port)
        for service in selecting(template.typed.metadata.labels, facts)
        for port in named_ports(service)
        if port not in _names(template) and selects_only(service, target, facts) is not None
    )
    for service, port in islice(found, _MAX):
        name, main = service.name, next(iter(template.containers(Role.MAIN)), None)
        if main is None:
            return
        sure = (
            selects_only(service, target, facts) is Certainty.CERTAIN
            and not facts.is_unread(Replicated)
            and not _is_added_to(template)
        )
        known = sorted(filter(None, _names(template)))
        names = f"; they have {listed(known[:4])}" if known else ""
        yield Finding(
            template.at(main, "ports"),
            f"Service {name} sends to port {port}, but no container of these pods has a port with that "
            f"name{names}. The Service has no endpoints for that port, and connections to it fail.",
            f"Give the name {port} to a port of container {main.name}, or set the Service's targetPort to a "
            "name or number that the pods have.",
            Certainty.CERTAIN if sure else Certainty.LIKELY,
        )


def _names(template: PodTemplate) -> frozenset[str]:
    """The port names of the main containers and sidecars."""
    return frozenset(
        port.name
        for container in template.containers(Role.MAIN, Role.SIDECAR)
        for port in container.typed.ports
    )


def _is_added_to(template: PodTemplate) -> bool:
    """Whether other webhooks may add containers with further ports to the pods."""
    metadata = template.typed.metadata
    keys = (*metadata.labels, *metadata.annotations)
    return any(part in key.lower() for key in keys for part in _INJECTED)


RULE = rule(__name__, check, (*SERVING, LEADER_WORKER_SET), unowned=True)
