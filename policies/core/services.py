"""Which Service a host name stands for, and whether it leads back to the pods that ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from policies.core.facts import BY_NAME, Facts
from policies.core.finding import Certainty
from policies.core.listing import Index, Listing
from policies.core.resources import Resource
from policies.core.target import PodTemplate, Target
from policies.kube.json import Json, dig, mapping, maps, text
from policies.kube.metadata import labels_of
from policies.kube.pods import Container

_SERVICE_HOST: Final = "_SERVICE_HOST"
_NAMESPACE_COMMAND: Final = "$(cat)"
"""How a `cat` of the service account's namespace file shows in a host name."""


_MOST_SERVICES: Final = 32
"""Services of one pod that are compared with all workloads; of further ones it stays undecided."""


@dataclass(frozen=True, slots=True)
class OwnService:
    """A Service that has only the asking pods behind it, and hides them until they are ready."""

    name: str
    headless: bool
    certainty: Certainty
    """UNDECIDED if other pods may be behind it, or if the namespace is not known."""


def own_service(
    host: str, target: Target, template: PodTemplate, container: Container, facts: Facts
) -> OwnService | None:
    """The Service that `host` names, if the pod waits for itself by waiting for it.

    None if the host is something else, if the Service selects other workloads' pods (one of these may be
    ready first) or publishes pods that are not ready, and if Services are not known.
    """
    # A command may name thousands of hosts, and each Service is compared with every workload there is.
    asked = ("own service", container.list, container.index, host)
    if asked not in template.memo:
        template.memo[asked] = _own_service(host, target, template, container, facts)
    service: OwnService | None = template.memo[asked]
    return service


def _own_service(
    host: str, target: Target, template: PodTemplate, container: Container, facts: Facts
) -> OwnService | None:
    listing = facts.listing(Resource.SERVICES)
    if not listing:
        return None
    service, certainty = _named(host, container, listing, facts)
    if service is None or not _hides(service) or not selects(service, template.pod):
        return None
    name = text(service, "metadata", "name")
    shared: dict[str, bool] = template.memo.setdefault("shared services", {})
    if name not in shared:
        shared[name] = len(shared) < _MOST_SERVICES and _has_others(service, target, facts)
    if shared[name]:
        return None
    if len(shared) > _MOST_SERVICES or template.completes:
        # Jobs are clients: the Service's servers may only not be known yet.
        certainty = Certainty.UNDECIDED
    return OwnService(name, text(service, "spec", "clusterIP") == "None", certainty)


def hides_not_ready(name: str, facts: Facts) -> bool | None:
    """Whether the Service of that name leaves out pods that are not ready; None when it is not known."""
    listing = facts.listing(Resource.SERVICES)
    service = listing.by(BY_NAME).one(name) if listing else None
    return None if service is None else _hides(service)


def in_namespace(labels: list[str], container: Container, facts: Facts) -> Certainty | None:
    """Whether what follows a Service's name in a host name leads to the namespace of the pod.

    `labels` is what the dots part: nothing, `ns`, `ns.svc`, `ns.svc.cluster.local`.
    """
    if len(labels) > 1 and labels[1].lower() != "svc":
        return None
    if not labels or labels[0].lower() == facts.namespace:
        return Certainty.SURE
    if not labels[0].startswith("$"):
        return None
    variable = labels[0].strip("$(){}").lower()
    own = labels[0] == _NAMESPACE_COMMAND or any(
        text(entry, "name").lower() == variable
        and text(entry, "valueFrom", "fieldRef", "fieldPath") == "metadata.namespace"
        for entry in maps(container.spec, "env")
    )
    return Certainty.SURE if own else Certainty.UNDECIDED


def _named(host: str, container: Container, listing: Listing, facts: Facts) -> tuple[Json | None, Certainty]:
    """The Service that a host name, an address or kubelet's `$NAME_SERVICE_HOST` stands for."""
    if host.startswith("$"):
        variable = host.strip("$(){}").upper()
        if not variable.endswith(_SERVICE_HOST) or dig(container.spec, "envFrom"):
            return None, Certainty.UNDECIDED
        return listing.by(BY_VARIABLE).one(variable.removesuffix(_SERVICE_HOST)), Certainty.SURE
    by_address = listing.by(BY_ADDRESS).one(host)
    if by_address is not None:
        return by_address, Certainty.SURE
    name, *rest = host.rstrip(".").split(".")
    certainty = in_namespace(rest, container, facts)
    if certainty is None:
        return None, Certainty.UNDECIDED
    return listing.by(BY_NAME).one(name.lower()), certainty


def _variable_of(service: Json) -> Iterator[str]:
    yield text(service, "metadata", "name").replace("-", "_").upper()


def _address_of(service: Json) -> Iterator[str]:
    address = text(service, "spec", "clusterIP")
    if address not in ("", "None"):
        yield address


BY_VARIABLE: Final = Index(_variable_of)
"""Services by the beginning of the variables in which kubelet gives their addresses."""
BY_ADDRESS: Final = Index(_address_of)
"""Services by their cluster addresses."""


def _hides(service: Json) -> bool:
    spec = mapping(service, "spec")
    return spec.get("publishNotReadyAddresses") is not True and spec.get("type") != "ExternalName"


def selects(service: Json, pod: Json) -> bool:
    """A Service without a selector has endpoints that somebody else writes: it selects nothing."""
    selector, labels = mapping(service, "spec", "selector"), labels_of(pod)
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())


def _has_others(service: Json, target: Target, facts: Facts) -> bool:
    """Whether another workload's pods stand behind the Service too: they may be ready before."""
    listing = facts.listing(Resource.WORKLOADS)
    if not listing:
        return False
    by_label = listing.by(BY_LABEL)
    selector = mapping(service, "spec", "selector").items()
    # One label of the selector leads to all that it can select; the rarest one to the fewest more.
    candidates = min((by_label[str(label)] for label in selector), key=len, default=())
    own = (target.kind.kind, target.name)
    return any(
        selects(service, mapping(workload, "spec", "template"))
        for workload in candidates
        if (text(workload, "kind"), text(workload, "metadata", "name")) != own
    )


def _labels_of_pods(workload: Json) -> Iterator[str]:
    return map(str, labels_of(mapping(workload, "spec", "template")).items())


BY_LABEL: Final = Index(_labels_of_pods)
"""Workloads by each label of their pods."""
