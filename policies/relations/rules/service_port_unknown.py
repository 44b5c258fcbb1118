"""service-port-unknown: Services whose targetPort is a name that no container of their pods has."""

from __future__ import annotations

from itertools import islice
from typing import Final

from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.resources import Resource
from policies.core.services import BY_NAMED_PORT, named_ports, selects, selects_only
from policies.kube.group_kinds import DEPLOYMENT, STATEFUL_SET
from policies.kube.json import maps, text
from policies.kube.metadata import annotations_of, labels_of
from policies.kube.names import listed
from policies.kube.pods import Role

_MAX: Final = 4
"""Findings for one workload."""
_INJECTED: Final = ("inject", "sidecar")
"""Parts of labels and annotations that request further containers."""


def check(target: Target, facts: Facts) -> Findings:
    services = facts.listing(Resource.SERVICES)
    if not services or len(target.templates) != 1 or target.has_controller:
        return
    template = target.templates[0]
    by_label = services.by(BY_NAMED_PORT)
    found = (
        (service, port)
        for label in map(str, labels_of(template.pod).items())
        for service in by_label[label]
        for port in named_ports(service)
        if port not in _names(template)
        if selects(service, template.pod) and selects_only(service, target, facts) is not None
    )
    for service, port in islice(found, _MAX):
        name, main = text(service, "metadata", "name"), next(iter(template.containers(Role.MAIN)), None)
        if main is None:
            return
        sure = selects_only(service, target, facts) is Certainty.CERTAIN and not _is_added_to(template)
        known = sorted(filter(None, _names(template)))
        names = f"; they have {listed(known[:4])}" if known else ""
        yield Finding(
            template.at(main, "ports"),
            f"Service {name} sends to port {port}, a name that no container of these pods has{names}: the "
            "Service has no endpoints for that port, and connections to it fail.",
            f"Give the name {port} to a port of container {main.name}, or set the Service's targetPort to a "
            "name or number that the pods have.",
            Certainty.CERTAIN if sure else Certainty.LIKELY,
        )


def _names(template: PodTemplate) -> frozenset[str]:
    """The port names of the main containers and sidecars."""
    return frozenset(
        text(port, "name")
        for container in template.containers(Role.MAIN, Role.SIDECAR)
        for port in maps(container.spec, "ports")
    )


def _is_added_to(template: PodTemplate) -> bool:
    """Whether other webhooks may add containers with further ports to the pods."""
    keys = (*labels_of(template.pod), *annotations_of(template.pod))
    return any(part in key.lower() for key in keys for part in _INJECTED)


RULE = rule(__name__, check, (DEPLOYMENT, STATEFUL_SET))
