"""Gateways that send requests to pods, and how long they wait for an answer, from `gateways.yaml`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct

from policies.commands.durations import seconds
from policies.core import data
from policies.core.facts import WholeObjects
from policies.core.settings import Field, Model
from policies.kube.group_kinds import GroupKind
from policies.kube.objects import services as objects
from policies.kube.objects.kinds import type_of
from policies.kube.objects.metadata import Object
from policies.kube.objects.reading import readable
from policies.kube.objects.services import Ingress, OpenShiftRoute, Route, VirtualService

_CLASS: Final = "kubernetes.io/ingress.class"
_SERVICE: Final = "Service"
_POOL: Final = "InferencePool"
_GATEWAY: Final = GroupKind("gateway.networking.k8s.io", "Gateway")
_GATEWAY_CLASS: Final = GroupKind("gateway.networking.k8s.io", "GatewayClass")
_AI_BACKEND: Final = GroupKind("aigateway.envoyproxy.io", "AIServiceBackend")
_BACKEND: Final = GroupKind("gateway.envoyproxy.io", "Backend")

T = TypeVar("T", bound=Object)


class GatewayKind(Model):
    """An entry of `gateways.yaml`."""

    name: str
    kind: str = Field(pattern=r"^\w+\.[\w.-]+$", description="the kind of its routes, as `Kind.group`")
    classes: tuple[str, ...] = Field((), description="the classes of its Ingresses")
    gateway_classes: tuple[str, ...] = Field(
        (), description="the classes of the Gateways of its routes, or the controllers of these classes"
    )
    annotations: tuple[str, ...] = Field((), description="annotations that set the time")
    policies: tuple[str, ...] = Field(
        (), description="kinds, as `Kind.group`, that may set the time: it is unknown if there is one"
    )
    key: str = Field("", description="the key of the time in an annotation of `key=value` pairs")
    default: int | None = Field(None, description="seconds without a setting; absent: no limit")
    whole: bool = Field(False, description="whether the whole answer counts, also that of a stream")
    setting: str = Field(description="what sets the time, as a person would write it")
    source: str = Field(description="the documentation that shows it")

    @property
    def group_kind(self) -> GroupKind:
        return GroupKind.parse(self.kind)


class Backends(NamedTuple):
    """The objects that select the pods behind a route."""

    services: frozenset[str]
    pools: frozenset[str]
    """InferencePools."""


class Routed(Struct, frozen=True):
    """A Service or an InferencePool behind a route."""

    gateway: GatewayKind
    route: str
    """The route's kind and name."""
    backend: str
    """The backend's kind and name."""
    seconds: float
    is_default: bool


def routed(cluster: WholeObjects, namespace: str, own: Backends) -> list[Routed]:
    """Those of some Services and InferencePools of a namespace to which a route with a known time limit
    leads."""
    known = cluster.cache.once_for(namespace, _by_backend, cluster, namespace)
    names = (*(f"{_SERVICE} {each}" for each in own.services), *(f"{_POOL} {each}" for each in own.pools))
    found = sorted(chain.from_iterable(known.get(name, ()) for name in names), key=itemgetter(0))
    return [each for _, each in found]


def _by_backend(cluster: WholeObjects, namespace: str) -> dict[str, list[tuple[int, Routed]]]:
    """What routes lead to, each with its position, by the backend."""
    found: dict[str, list[tuple[int, Routed]]] = {}
    for position, each in enumerate(_routed(cluster, namespace)):
        found.setdefault(each.backend, []).append((position, each))
    return found


def _routed(cluster: WholeObjects, namespace: str) -> Iterator[Routed]:
    for gateway in _gateways():
        kind = type_of(gateway.group_kind)
        if any(any(cluster.every(GroupKind.parse(each), namespace)) for each in gateway.policies):
            continue
        for obj in cluster.every(gateway.group_kind, namespace):
            route = readable(obj, kind)
            if route is None or (gateway.classes and _class_of(route) not in gateway.classes):
                continue
            if gateway.gateway_classes and not _is_of(route, gateway.gateway_classes, cluster, namespace):
                continue
            name = f"{gateway.group_kind.kind} {route.name}"
            set_by_user = _annotated(gateway, route)
            for reference, limit in _references(route):
                limited = limit if gateway.whole else set_by_user
                time = gateway.default if limited is None else limited
                backend = _followed(reference, cluster, namespace)
                if time:
                    yield Routed(gateway, name, f"{backend.kind} {backend.name}", time, limited is None)


def _class_of(route: Object) -> str:
    own = route.spec.ingress_class_name if isinstance(route, Ingress) else ""
    return own or route.metadata.annotations.get(_CLASS, "")


def _is_of(route: Object, classes: tuple[str, ...], cluster: WholeObjects, namespace: str) -> bool:
    """Whether a route belongs to a Gateway of one of the classes."""
    for parent in route.spec.parent_refs if isinstance(route, Route) else ():
        gateway = _known(cluster, _GATEWAY, objects.Gateway, parent.namespace or namespace, parent.name)
        if gateway is None:
            continue
        name = gateway.spec.gateway_class_name
        of_class = _known(cluster, _GATEWAY_CLASS, objects.GatewayClass, "", name)
        if name in classes or (of_class is not None and of_class.spec.controller_name in classes):
            return True
    return False


def _known(cluster: WholeObjects, kind: GroupKind, as_type: type[T], namespace: str, name: str) -> T | None:
    """An object of a name as a type; None if it is unknown or has a value of another type."""
    found = cluster.named(kind, namespace, name)
    return None if found is None else readable(found, as_type)


def _annotated(gateway: GatewayKind, route: Object) -> float | None:
    for annotation in gateway.annotations:
        value = route.metadata.annotations.get(annotation)
        if value is not None and gateway.key:
            pairs = (each.strip().partition("=") for each in value.split(","))
            value = next((after for key, _, after in pairs if key == gateway.key), None)
        if value is not None:
            return seconds(value.strip()) or 0.0
    return None


def _references(route: Object) -> Iterator[tuple[objects.BackendReference, float | None]]:
    """The backends of a route, each with the time that its rule sets."""
    if isinstance(route, Ingress):
        yield _service(route.spec.default_backend.service.name), None
        for paths in route.spec.rules:
            yield from ((_service(path.backend.service.name), None) for path in paths.http.paths)
    elif isinstance(route, OpenShiftRoute):
        yield _service(route.spec.to.name), None
    elif isinstance(route, Route):
        for rule in route.spec.rules:
            times = [seconds(each) for each in (rule.timeouts.request, rule.timeouts.backend_request) if each]
            limit = min(filter(None, times), default=0.0 if times else None)  # 0s switches it off
            yield from ((each, limit) for each in rule.backend_refs)
    elif isinstance(route, VirtualService):
        for http in route.spec.http:
            names = (each.destination.host.partition(".")[0] for each in http.route)
            yield from ((_service(name), seconds(http.timeout)) for name in names)


def _service(name: str) -> objects.BackendReference:
    return objects.BackendReference(kind=_SERVICE, name=name)


def _followed(
    reference: objects.BackendReference, cluster: WholeObjects, namespace: str
) -> objects.BackendReference:
    """The Service or InferencePool that a reference leads to. An AIGatewayRoute names AIServiceBackends,
    which name a Backend with a host name."""
    if reference.kind in ("", "AIServiceBackend"):
        ai_backend = _known(cluster, _AI_BACKEND, objects.AIServiceBackend, namespace, reference.name)
        reference = reference if ai_backend is None else ai_backend.spec.backend_ref
    if reference.kind == "Backend":
        backend = _known(cluster, _BACKEND, objects.Backend, namespace, reference.name)
        hosts = () if backend is None else (each.fqdn.hostname for each in backend.spec.endpoints)
        inside = (host for host in hosts if host.partition(".")[2] in ("", namespace) or ".svc" in host)
        return _service(next(inside, "").partition(".")[0])
    return objects.BackendReference(kind=reference.kind or _SERVICE, name=reference.name)


@data.table
def _gateways() -> tuple[GatewayKind, ...]:
    return data.load_list(GatewayKind, __package__, "gateways.yaml")
