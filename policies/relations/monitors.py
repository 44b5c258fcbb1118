"""Monitors of the Prometheus operator that ask for a port which nothing has, so that nothing is scraped.

Source: generateServiceMonitorConfig and generatePodMonitorConfig in pkg/prometheus/promcfg.go of
prometheus-operator: `port` is compared with the name of a Service's or container's port, `targetPort` and
`portNumber` with the ports that containers declare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from policies.core.contracts import Facts, PodTemplate, Target
from policies.core.facts import WholeObjects
from policies.core.services import selecting, selects, selects_only, workloads_of
from policies.kube.group_kinds import GroupKind
from policies.kube.objects.services import Monitor, Service
from policies.kube.pods import Role

_OF_PODS: Final = GroupKind("monitoring.coreos.com", "PodMonitor")
_OF_SERVICES: Final = GroupKind("monitoring.coreos.com", "ServiceMonitor")
_ADDED: Final = ("envoy", "15020", "15090", "linkerd", "4191", "dapr", "$", "{")
"""Parts of the names and numbers of ports that meshes add to pods, or that are only known later."""
_OPERATORS: Final = ("operator", "controller")
"""Parts of the names of workloads that make pods, which may have their label: all of KubeRay's have the same
app.kubernetes.io/name."""


def unscraped(target: Target, template: PodTemplate, facts: Facts) -> Iterator[tuple[str, int | str, str]]:
    """The monitors of only these pods that ask for a port which they or their Services lack: the title of the
    monitor, the port, and what has no such port. One of whose ports they have is for others, too."""
    whole = facts.whole
    makes_pods = any(word in target.name for word in _OPERATORS)
    for monitor in () if whole is None or makes_pods else _monitors(_OF_PODS, facts, whole):
        selector = monitor.spec.selector
        if selector is None or not selector.matches(template.typed.metadata.labels):
            continue
        if len(list(islice(workloads_of(selector, facts), 2))) != 1:
            continue
        ports = [
            each.port or each.port_number or each.target_port or 0
            for each in monitor.spec.pod_metrics_endpoints
        ]
        if all(_is_lacking(asked, template) for asked in ports):
            for asked in ports:
                yield f"PodMonitor {monitor.name}", asked, "container of these pods"
    own = [] if whole is None else list(selecting(template.typed.metadata.labels, facts))
    for monitor in _monitors(_OF_SERVICES, facts, whole) if whole is not None and own else ():
        services = list(_services(monitor, own, facts))
        if not services or not all(_is_in_front(each, target, template, facts) for each in services):
            continue
        names = {port.name for each in services for port in each.spec.ports}
        lacking: list[tuple[int | str, str]] = []
        for each in monitor.spec.endpoints:
            if each.port and each.port not in names and not _is_added(each.port):
                lacking.append((each.port, f"port of Service {services[0].name}"))
            elif not each.port and _is_lacking(each.target_port or 0, template):
                lacking.append((each.target_port or 0, "container of these pods"))
        if len(lacking) == len(monitor.spec.endpoints):
            for asked, what in lacking:
                yield f"ServiceMonitor {monitor.name}", asked, what


def _monitors(kind: GroupKind, facts: Facts, whole: WholeObjects) -> Iterator[Monitor]:
    every = whole.cache.once_for((kind,), _every, whole, kind)
    return (each for each in every if each.looks_only_in(facts.namespace))


def _every(whole: WholeObjects, kind: GroupKind) -> list[Monitor]:
    return list(whole.typed(kind, None, Monitor))


def _services(monitor: Monitor, own: Sequence[Service], facts: Facts) -> Iterator[Service]:
    """The Services that a monitor selects, if one of `own` is among them."""
    selector = monitor.spec.selector
    if selector is not None and any(selector.matches(each.metadata.labels) for each in own):
        for each in facts.objects(Service) or ():
            if selector.matches(each.metadata.labels):
                yield each


def _is_in_front(service: Service, target: Target, template: PodTemplate, facts: Facts) -> bool:
    """Whether a Service selects these pods, and no others."""
    labels = template.typed.metadata.labels
    return selects(service, labels) and selects_only(service, target, facts) is not None


def _is_lacking(asked: int | str, template: PodTemplate) -> bool:
    """Whether no container declares a port of this name or number."""
    ports = [
        port for container in template.containers(Role.MAIN, Role.SIDECAR) for port in container.typed.ports
    ]
    known = (
        {port.name for port in ports} if isinstance(asked, str) else {port.container_port for port in ports}
    )
    return asked != 0 and asked not in known and not _is_added(asked)


def _is_added(asked: int | str) -> bool:
    return any(part in str(asked) for part in _ADDED)
