"""The Service, or the pod of a StatefulSet, that a host name resolves to inside a cluster.

Names resolve with the cluster DNS and the kubelet's search domains: `service`, `service.namespace`, `….svc`,
`….svc.cluster.local`, and the same after a pod's name for headless Services. ExternalName Services are
aliases. https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from policies.core.facts import Cluster
from policies.core.listing import BY_NAME, Objects, TypedIndex
from policies.core.resources import Resource
from policies.core.target import PodTemplate
from policies.kube.objects.services import Service
from policies.kube.pods import Container

_SERVICE_HOST: Final = "_SERVICE_HOST"
_CLUSTER_DOMAIN: Final = ["cluster", "local"]
_OWN_NAMESPACE: Final = "metadata.namespace"
_NAMESPACE_FILE: Final = "$(cat)"
"""A `cat` of the service account's namespace file, as the command reader returns it in a host name."""
_MAX_ALIASES: Final = 4
"""The longest chain of ExternalName Services."""


def is_address(host: str) -> bool:
    """Whether a host is written as an IP address."""
    return ":" in host or host.replace(".", "").isdigit()


# --- from the text of a container to a host name -------------------------------------------------------


class ClusterHost(Struct, frozen=True):
    """A host in a container's text, in the form that `resolve` accepts."""

    host: str
    """In lower case, relative to the pod's namespace if a variable contains the namespace; a variable of
    kubelet (`$DB_SERVICE_HOST`) as it is written."""
    certain: bool
    """Whether no other host is possible."""


def cluster_host(host: str, template: PodTemplate, container: Container) -> ClusterHost | None:
    """A host in the text of a container; None if it cannot be a Service."""
    host = host.rstrip(".")
    if host.startswith("$"):
        return ClusterHost(host, True) if _is_set_by_kubelet(host, template, container) else None
    if is_address(host):
        return ClusterHost(host, True)
    host = host.lower()
    if not resolves_services(template) or host in _own_hosts(template):
        return None
    labels = host.split(".")
    for index in (1, 2):
        if "".join(labels[index : index + 1]).startswith("$") and labels[index + 1 : index + 2] in (
            [],
            ["svc"],
        ):
            return ClusterHost(".".join(labels[:index]), _is_own_namespace(labels[index], container))
    for index in (2, 3):
        if labels[index : index + 1] == ["svc"] and labels[index + 1 :] not in ([], _CLUSTER_DOMAIN):
            # The domain of this cluster or of another one.
            return ClusterHost(".".join(labels[: index + 1]), False)
    return ClusterHost(host, True)


def _is_set_by_kubelet(host: str, template: PodTemplate, container: Container) -> bool:
    """Whether the kubelet sets a variable to the address of a Service, and the container does not."""
    variable = host.strip("$(){}")
    return (
        variable.upper().endswith(_SERVICE_HOST)
        and template.typed.spec.enable_service_links
        and not container.typed.env_from
        and not any(entry.name == variable for entry in container.typed.env)
    )


def _is_own_namespace(label: str, container: Container) -> bool:
    variable = label.strip("$(){}").lower()
    return label == _NAMESPACE_FILE or any(
        entry.name.lower() == variable and entry.field_path == _OWN_NAMESPACE for entry in container.typed.env
    )


def resolves_services(template: PodTemplate) -> bool:
    """Whether names of Services resolve in the pod, which they do not with the node's own resolver."""
    policy = template.typed.spec.dns_policy or "ClusterFirst"
    if policy == "ClusterFirst":
        return not template.typed.spec.host_network
    return policy == "ClusterFirstWithHostNet"


def _own_hosts(template: PodTemplate) -> frozenset[str]:
    """The names in the pod's hosts file, which precede DNS."""
    return frozenset(name.lower() for entry in template.typed.spec.host_aliases for name in entry.hostnames)


# --- from a name to a Service ----------------------------------------------------------------------------


class ResolvedService(Struct, frozen=True):
    """The Service of a host name."""

    service: Service
    namespace: str
    pod: str = ""
    """The pod's name before the name of a headless Service."""

    @property
    def name(self) -> str:
        return self.service.name

    @property
    def headless(self) -> bool:
        return self.service.spec.cluster_ip == "None"


def resolve(host: str, namespace: str, cluster: Cluster) -> ResolvedService | None:
    """The known Service that a pod in `namespace` reaches under a name or an address."""
    found = _resolve_once(host, namespace, cluster)
    for _ in range(_MAX_ALIASES):
        if found is None or found.service.spec.type != "ExternalName":
            return found
        # DNS resolves an alias as a full name, without the kubelet's search domains.
        alias = found.service.spec.external_name.lower().rstrip(".")
        full = alias.endswith(".svc." + ".".join(_CLUSTER_DOMAIN))
        found = _resolve_once(alias, found.namespace, cluster) if full else None
    return None


def _resolve_once(host: str, namespace: str, cluster: Cluster) -> ResolvedService | None:
    own = _services(cluster, namespace)
    if own is None or not host:
        return None
    if host.startswith("$"):
        variable = host.strip("$(){}").upper()
        if not variable.endswith(_SERVICE_HOST):
            return None
        found = own.one(BY_VARIABLE, variable.removesuffix(_SERVICE_HOST))
        return None if found is None else ResolvedService(found, namespace)
    if is_address(host):
        found = own.one(BY_ADDRESS, host)
        if found is None and (every := _services(cluster, None)) is not None:
            found = every.one(BY_ADDRESS, host)
        if found is None:
            return None
        return ResolvedService(found, found.metadata.namespace or namespace)
    for service, place, pod in possible_services(host, namespace):
        there = _services(cluster, place)
        found = None if there is None else there.named(service)
        if found is not None:
            meant = ResolvedService(found, place, pod)
            if not pod or meant.headless:
                return meant
    return None


def _services(cluster: Cluster, namespace: str | None) -> Objects[Service] | None:
    listing = cluster.listing(Resource.SERVICES, namespace)
    return None if listing is None else listing.objects(Service)


def possible_services(host: str, namespace: str) -> Iterator[tuple[str, str, str]]:
    """Each (Service, namespace, pod) that a name may mean, in the order of the kubelet's search domains."""
    labels, qualified = host.lower().rstrip(".").split("."), False
    if labels[-2:] == _CLUSTER_DOMAIN:
        labels = labels[:-2]
        if labels[-1:] != ["svc"]:
            return
        qualified = True
    if qualified or (len(labels) > 2 and labels[-1] == "svc"):
        labels, qualified = labels[:-1], True
    match labels:
        case [service] if not qualified:
            yield service, namespace, ""
        case [first, second]:
            # Names of a StatefulSet's pods end in a number; other names are rather those of Services.
            if not qualified and _is_ordinal(first):
                yield second, namespace, first
            yield first, second, ""
            if not qualified:
                yield second, namespace, first
        case [pod, service, place]:
            yield service, place, pod


def service_names(
    host: str, namespace: str, has_dns_config: bool, cluster: Cluster
) -> list[tuple[str, str, str]]:
    """`possible_services` of a host that is certainly the name of a Service; empty if it may be another
    host. `has_dns_config`: whether the pod may have search domains of its own."""
    if host.startswith("$") or " " in host or is_address(host):  # `hugging face` is a client's own host
        return []
    labels = host.rstrip(".").split(".")
    if len(labels) == 1 and has_dns_config:
        return []
    if "svc" not in labels[2:4] and len(labels) > 1:
        # db.ml may be a host outside the cluster, unless ml is a namespace.
        namespaces = cluster.listing(Resource.NAMESPACES)
        if len(labels) > 2 or namespaces is None or namespaces.by(BY_NAME).one(labels[1]) is None:
            return []
    return list(possible_services(host, namespace))


def _is_ordinal(pod: str) -> bool:
    """Whether a StatefulSet's pod may have this name."""
    owner, _, number = pod.rpartition("-")
    return bool(owner) and number.isascii() and number.isdigit()


def _variable_of(service: Service) -> Iterator[str]:
    yield service.name.replace("-", "_").upper()


def _address_of(service: Service) -> Iterator[str]:
    address = service.spec.cluster_ip
    if address not in ("", "None"):
        yield address


BY_VARIABLE: Final = TypedIndex(Service, _variable_of)
"""Services by the prefix of their environment variables."""
BY_ADDRESS: Final = TypedIndex(Service, _address_of)
"""Services by their cluster addresses."""
