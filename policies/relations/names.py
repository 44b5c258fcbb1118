"""Which Service, or which pod of a StatefulSet, a host name stands for inside a cluster.

Names resolve as the cluster DNS and kubelet's search domains resolve them: `service`, `service.namespace`,
`….svc`, `….svc.cluster.local`, and the same with a pod's name in front for headless Services. An ExternalName
Service leads on to the name that it holds.
https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from policies.core.facts import BY_NAME, Cluster
from policies.core.listing import Listing
from policies.core.resources import Resource
from policies.core.services import BY_ADDRESS, BY_VARIABLE
from policies.kube.json import Json, text

_SERVICE_HOST: Final = "_SERVICE_HOST"
_CLUSTER_DOMAIN: Final = ("cluster", "local")
_MOST_ALIASES: Final = 4
"""ExternalName Services that are followed one after the other."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A Service that a name leads to."""

    service: Json
    namespace: str
    pod: str = ""
    """The pod's own name in front of a headless Service's name."""

    @property
    def name(self) -> str:
        return text(self.service, "metadata", "name")

    @property
    def headless(self) -> bool:
        return text(self.service, "spec", "clusterIP") == "None"


def destination(host: str, namespace: str, cluster: Cluster) -> Destination | None:
    """The Service that a pod in `namespace` reaches under a name or an address.

    None if the name is not that of a Service that is known.
    """
    for _ in range(_MOST_ALIASES):
        found = _destination(host, namespace, cluster)
        if found is None or text(found.service, "spec", "type") != "ExternalName":
            return found
        host, namespace = text(found.service, "spec", "externalName").lower().rstrip("."), found.namespace
    return None


def _destination(host: str, namespace: str, cluster: Cluster) -> Destination | None:
    own = cluster.listing(Resource.SERVICES, namespace)
    if own is None or not host:
        return None
    if host.startswith("$"):
        variable = host.strip("$(){}").upper()
        if not variable.endswith(_SERVICE_HOST):
            return None
        found = own.by(BY_VARIABLE).one(variable.removesuffix(_SERVICE_HOST))
        return None if found is None else Destination(found, namespace)
    if is_address(host):
        every = cluster.listing(Resource.SERVICES)
        found = every.by(BY_ADDRESS).one(host) if every is not None else None
        return (
            None if found is None else Destination(found, text(found, "metadata", "namespace") or namespace)
        )
    labels = _without_domain(host.lower().rstrip(".").split("."))
    if labels is None:
        return None
    return next(_candidates(labels, namespace, own, cluster), None)


def is_address(host: str) -> bool:
    """Whether a host is written as an IP address."""
    return ":" in host or host.replace(".", "").isdigit()


def _without_domain(labels: list[str]) -> list[str] | None:
    """The labels before `svc` and the cluster's domain; None for a name in another domain."""
    if tuple(labels[-2:]) == _CLUSTER_DOMAIN:
        labels = labels[:-2]
        if labels[-1:] != ["svc"]:
            return None
    if len(labels) > 2 and labels[-1] == "svc":
        labels = labels[:-1]
    return labels if len(labels) <= 3 else None


def _candidates(labels: list[str], namespace: str, own: Listing, cluster: Cluster) -> Iterator[Destination]:
    """What the labels can mean, in the order of kubelet's search domains: own namespace first."""

    def named(service: str, place: str, pod: str = "") -> Iterator[Destination]:
        listing = own if place == namespace else cluster.listing(Resource.SERVICES, place)
        found = listing.by(BY_NAME).one(service) if listing else None
        if found is not None:
            yield Destination(found, place, pod)

    match labels:
        case [service]:
            yield from named(service, namespace)
        case [first, second]:
            yield from named(second, namespace, pod=first)
            yield from named(first, second)
        case [pod, service, place]:
            yield from named(service, place, pod=pod)
