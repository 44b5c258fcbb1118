"""service-port-unknown: Services whose targetPort is a name that no container of their pods has."""

from __future__ import annotations

from itertools import islice
from typing import Final

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.services import BY_NAMED_PORT, named_ports, selects, selects_only
from policies.kube.group_kinds import DEPLOYMENT, STATEFUL_SET
from policies.kube.names import listed
from policies.kube.objects.services import Service
from policies.kube.objects.workloads import Replicated
from policies.kube.pods import Role

_MAX: Final = 4
"""Findings for one workload."""
_INJECTED: Final = ("inject", "sidecar")
"""Parts of labels and annotations that request further containers."""


def check(target: Target, facts: Facts) -> Findings:
    services = facts.objects(Service)
    if not services or len(target.templates) != 1:
        return
    template = target.templates[0]
    labels = template.typed.metadata.labels
    found = (
        (service, port)
        for label in map(str, labels.items())
        for service in services.by(BY_NAMED_PORT, label)
        for port in named_ports(service)
        if port not in _names(template)
        if selects(service, labels) and selects_only(service, target, facts) is not None
    )
    for service, port in islice(found, _MAX):
        name, main = service.name, next(iter(template.containers(Role.MAIN)), None)
        if main is None:
            return
        sure = selects_only(service, target, facts) is Certainty.CERTAIN and not _is_added_to(template)
        sure = sure and not facts.is_unread(Replicated)
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


RULE = rule(__name__, check, (DEPLOYMENT, STATEFUL_SET), unowned=True)
