"""The pods that Services and InferencePools select, and Services that select only the pods that use them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final

from msgspec import Struct

from policies.core.dns import cluster_host, resolve, service_names
from policies.core.facts import Facts, WholeObjects
from policies.core.finding import Certainty
from policies.core.listing import BY_NAME, Index, Listing, TypedIndex
from policies.core.resources import Resource
from policies.core.target import PodTemplate, Target
from policies.kube.group_kinds import (
    DAEMON_SET,
    GRPC_ROUTE,
    HTTP_ROUTE,
    INGRESS,
    POD,
    SERVICE,
    GroupKind,
    kind_of,
)
from policies.kube.json import Json, mapping, text
from policies.kube.metadata import labels_of
from policies.kube.objects.metadata import LabelSelector
from policies.kube.objects.reading import readable
from policies.kube.objects.services import InferencePool, Ingress, Route, Service
from policies.kube.objects.workloads import Replicated
from policies.kube.pods import Container

_SWITCHED: Final = frozenset(
    {
        "role",
        "leader",
        "primary",
        "master",
        "active",
        "version",
        "color",
        "colour",
        "slot",
        "track",
        "revision",
    }
)
"""Words of labels that a program sets on running pods, as Patroni does, or of which a Service selects one
value after another, as pipelines with two colours let it."""
_WORD: Final = re.compile(r"[a-z0-9]+", re.ASCII)
_MAX_SERVICES: Final = 32
"""Services of one pod that are compared with all workloads; further ones are undecided."""


class OwnService(Struct, frozen=True):
    """A Service that selects only the pods that wait for it, and leaves them out until they are ready."""

    name: str
    headless: bool
    certainty: Certainty
    """UNDECIDED if it may select other pods, or if the namespace is unknown."""


def own_service(
    host: str, target: Target, template: PodTemplate, container: Container, facts: Facts
) -> OwnService | None:
    """The Service of a host name, if the pod waits for itself by waiting for it.

    None if the host is no known Service, or if the Service selects pods of other workloads, which may be
    ready first, or publishes unready pods.
    """
    # A command may contain thousands of hosts, and each Service is compared with every workload.
    return template.cache.once_for((container, host), _own_service, host, target, template, container, facts)


def _own_service(
    host: str, target: Target, template: PodTemplate, container: Container, facts: Facts
) -> OwnService | None:
    if not facts.listing(Resource.SERVICES):
        return None
    named = cluster_host(host, template, container)
    found = None if named is None else resolve(named.host, facts.namespace, facts.cluster)
    if named is None or found is None or found.pod or found.namespace != facts.namespace:
        return None
    service = found.service
    if not _hides(service) or not selects(service, template.typed.metadata.labels):
        return None
    name = service.name
    shared = template.cache.once(_shared_services)
    if name not in shared:
        shared[name] = len(shared) < _MAX_SERVICES and _has_others(service, target, facts)
    if shared[name]:
        return None
    # Jobs are clients: the servers may not exist yet.
    sure = named.certain and len(shared) <= _MAX_SERVICES and not template.completes
    if facts.is_unread(Replicated):
        sure = sure and selects_only(service, target, facts) is Certainty.CERTAIN
    return OwnService(name, found.headless, Certainty.CERTAIN if sure else Certainty.UNDECIDED)


def has_no_service(host: str, template: PodTemplate, container: Container, facts: Facts) -> bool:
    """Whether a host is the name of a Service that a running cluster lacks now, or that a whole set of
    files does not make. False where `WholeObjects.lacks` decides: a rule of its own reports these."""
    named = cluster_host(host, template, container)
    if named is None or not named.certain:
        return False
    cluster = facts.cluster
    has_dns_config = template.typed.spec.dns_config is not None
    found = service_names(named.host, facts.namespace, has_dns_config, cluster)
    if not found:
        return False
    if isinstance(cluster, WholeObjects):
        return all(cluster.makes_no(SERVICE, place, name) for name, place, _ in found) and not all(
            cluster.lacks(SERVICE, place, name) for name, place, _ in found
        )
    listings = [(name, cluster.listing(Resource.SERVICES, place)) for name, place, _ in found]
    return all(known is not None and known.by(BY_NAME).one(name) is None for name, known in listings)


def _shared_services() -> dict[str, bool]:
    """By the name of each compared Service, whether it also selects pods of other workloads."""
    return {}


def hides_unready(name: str, facts: Facts) -> bool | None:
    """Whether the Service of a name leaves out unready pods; None if it is unknown."""
    services = facts.objects(Service)
    service = None if services is None else services.named(name)
    return None if service is None else _hides(service)


def _hides(service: Service) -> bool:
    return not service.spec.publish_not_ready_addresses and service.spec.type != "ExternalName"


def selects(service: Service, labels: Mapping[str, str]) -> bool:
    """Whether a Service selects a pod with these labels; without a selector it selects none."""
    selector = service.spec.selector
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())


def _has_others(service: Service, target: Target, facts: Facts) -> bool:
    """Whether the Service also selects pods of another workload, which may be ready first."""
    own = (target.kind.kind, target.name)
    others = None if facts.whole is None else facts.whole.other_pods(facts.namespace)
    return any(
        (text(workload, "kind"), text(workload, "metadata", "name")) != own
        for workload in chain(
            selected_workloads(service, facts.listing(Resource.WORKLOADS)),
            selected_workloads(service, others),
        )
    )


def selected_workloads(service: Service, workloads: Listing | None) -> Iterator[Json]:
    """The workloads, or pods, whose pods a Service selects."""
    if workloads and service.spec.selector:
        for workload in _with_labels(service.spec.selector, workloads):
            if selects(service, labels_of(_pod_of(workload))):
                yield workload


def _with_labels(selector: Mapping[str, str], workloads: Listing) -> Iterable[Json]:
    """All workloads whose pods have these labels, and a few others."""
    if not selector:
        return workloads
    by_label = workloads.by(BY_LABEL)
    # Each label of the selector has all selected workloads; the rarest one has the fewest others.
    return min((by_label[str(label)] for label in selector.items()), key=len)


def workloads_of(selector: LabelSelector, facts: Facts) -> Iterator[tuple[Json, Replicated]]:
    """The known workloads of the namespace whose pods a selector selects, as JSON and as a type."""
    workloads = facts.objects(Replicated)
    if workloads:
        for obj in _with_labels(selector.match_labels, workloads.listing):
            workload = workloads.typed(obj)
            if selector.matches(workload.spec.template.metadata.labels):
                yield obj, workload


def _pod_of(workload: Json) -> Json:
    """The pod template; a pod itself."""
    return workload if kind_of(workload) == POD else mapping(workload, "spec", "template")


def _labels_of_pods(workload: Json) -> Iterator[str]:
    return map(str, labels_of(_pod_of(workload)).items())


BY_LABEL: Final = Index(_labels_of_pods)
"""Workloads by each label of their pods."""


def selects_only(service: Service, target: Target, facts: Facts) -> Certainty | None:
    """How sure it is that all pods behind a Service are the target's.

    CERTAIN if every pod that the Service selects matches the target's own selector; LIKELY if it selects no
    other known workload; None if it selects one, or if files contain another version of the target: only one
    of the variants is applied.
    """
    workloads = facts.listing(Resource.WORKLOADS)
    if _has_others(service, target, facts) or (workloads is not None and _has_variants(target, workloads)):
        return None
    own = target.read(Replicated).spec.selector
    if own is not None and own.match_labels and not own.match_expressions:
        asked_for = service.spec.selector
        if all(asked_for.get(key) == value for key, value in own.match_labels.items()):
            return Certainty.CERTAIN
    return None if workloads is None else Certainty.LIKELY


def unlike_its_own(target: Target, labels: Mapping[str, str], facts: Facts) -> tuple[Service, str] | None:
    """The Service of a workload's name that selects pods with another value of one of their labels, and that
    label's key. None if the Service selects other known pods, or if any file contains another version of the
    target: it may be that of the Service's file."""
    whole, workloads = facts.whole, facts.listing(Resource.WORKLOADS)
    found = None if whole is None else whole.together(SERVICE, facts.namespace, target.name)
    service = None if found is None else readable(found, Service)
    if whole is None or service is None or service.spec.type == "ExternalName" or workloads is None:
        return None
    asked = service.spec.selector.items()
    key = next((key for key, value in asked if labels.get(key, value) != value), None)
    if (
        key is None
        or not _SWITCHED.isdisjoint(_WORD.findall(key.lower()))
        or _differ(whole.versions(target.kind, facts.namespace, target.name))
    ):
        return None
    others = chain(
        selected_workloads(service, workloads),
        selected_workloads(service, whole.other_pods(facts.namespace)),
        (
            obj
            for obj in whole.every(DAEMON_SET, facts.namespace)
            if selects(service, labels_of(_pod_of(obj)))
        ),
    )
    return None if any(True for _ in others) else (service, key)


def _has_variants(target: Target, workloads: Listing) -> bool:
    """Whether files contain different objects of the target's kind and name that count for its file."""
    return _differ(
        [each for each in workloads.by(BY_NAME)[target.name] if text(each, "kind") == target.kind.kind]
    )


def _differ(objects: Sequence[Json]) -> bool:
    return any(each != objects[0] for each in objects)


def named_ports(service: Service) -> tuple[str, ...]:
    """The names of the container ports that a Service sends to; none for a headless Service, whose clients
    choose the port."""
    if not service.has_address:
        return ()
    # The API server refuses other texts, such as "80" and the placeholders of templates.
    names = (port.target_port for port in service.spec.ports if isinstance(port.target_port, str))
    return tuple(dict.fromkeys(filter(_is_port_name, names)))


_PORT_NAME: Final = re.compile(r"[a-z0-9](?:-?[a-z0-9]){0,14}")


def _is_port_name(name: str) -> bool:
    """`IsValidPortName` of the API server, except that hyphens do not count for its limit of 15
    characters."""
    return _PORT_NAME.fullmatch(name) is not None and not name.replace("-", "").isdigit()


def _first_label(service: Service) -> Iterator[str]:
    yield from map(str, islice(service.spec.selector.items(), 1))


BY_FIRST_LABEL: Final = TypedIndex(Service, _first_label)
"""The Services by one label of their selectors."""


def selecting(labels: Mapping[str, str], facts: Facts) -> Iterator[Service]:
    """The Services of the namespace that select pods with these labels."""
    services = facts.objects(Service)
    if services:
        for label in map(str, labels.items()):
            yield from (each for each in services.by(BY_FIRST_LABEL, label) if selects(each, labels))


POOLS: Final = (
    GroupKind("inference.networking.k8s.io", "InferencePool"),
    GroupKind("inference.networking.x-k8s.io", "InferencePool"),
)


def pools_of(labels: Mapping[str, str], facts: Facts) -> Iterator[InferencePool]:
    """The known InferencePools that select pods with labels."""
    if facts.whole is not None:
        for pool in _pools(facts.whole, facts.namespace):
            if pool.selects(labels):
                yield pool


def _pools(cluster: WholeObjects, namespace: str) -> Iterator[InferencePool]:
    return chain.from_iterable(cluster.typed(kind, namespace, InferencePool) for kind in POOLS)


_BY_ANNOTATION: Final = "use-annotation"
"""The port of backends that an annotation defines, for the AWS Load Balancer Controller (its documentation:
guide/ingress/annotations)."""


def asked_ports(service: str, facts: Facts) -> list[tuple[str, int | str]]:
    """The ports of a Service, by number or name, that known Ingresses, routes and InferencePools of the
    namespace send to, each with the sender."""
    cluster = facts.whole
    if cluster is None:
        return []
    return cluster.cache.once_for(facts.namespace, _asked_ports, cluster, facts.namespace).get(service, [])


def _asked_ports(cluster: WholeObjects, namespace: str) -> dict[str, list[tuple[str, int | str]]]:
    found: dict[str, list[tuple[str, int | str]]] = {}
    for sender, service, port in chain(
        _of_ingresses(cluster, namespace), _of_routes(cluster, namespace), _of_pickers(cluster, namespace)
    ):
        if service and port and (sender, port) not in found.setdefault(service, []):
            found[service].append((sender, port))
    return found


def _of_ingresses(cluster: WholeObjects, namespace: str) -> Iterator[tuple[str, str, int | str]]:
    for ingress in cluster.typed(INGRESS, namespace, Ingress):
        for _, service in ingress.services():
            if service.port.name != _BY_ANNOTATION:
                yield f"Ingress {ingress.name}", service.name, service.port.number or service.port.name


def _of_routes(cluster: WholeObjects, namespace: str) -> Iterator[tuple[str, str, int]]:
    for kind in (HTTP_ROUTE, GRPC_ROUTE):
        for route in cluster.typed(kind, namespace, Route):
            for _, each in route.services():
                if each.namespace in ("", namespace):
                    yield f"{kind.kind} {route.name}", each.name, each.port or 0


def _of_pickers(cluster: WholeObjects, namespace: str) -> Iterator[tuple[str, str, int]]:
    """The Services that InferencePools ask which pod gets a request."""
    for pool in _pools(cluster, namespace):
        yield f"InferencePool {pool.name}", *pool.picker
