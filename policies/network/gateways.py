"""Gateways that send requests to pods: how long they wait for an answer, from `gateways.yaml`, and how large
a request they accept, from `bodies.yaml`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct

from policies.commands.durations import seconds
from policies.core import data
from policies.core.facts import WholeObjects
from policies.core.settings import Field, Model
from policies.kube.group_kinds import GATEWAY, HTTP_ROUTE, SERVICE, GroupKind
from policies.kube.json import Json, dig, mapping, maps, text
from policies.kube.objects import services as objects
from policies.kube.objects.kinds import type_of
from policies.kube.objects.metadata import Object
from policies.kube.objects.reading import readable
from policies.kube.objects.services import Ingress, OpenShiftRoute, Route, VirtualService
from policies.kube.quantities import bytes_or_zero, whole_number

OLD_CLASS: Final = "kubernetes.io/ingress.class"
"""The annotation that named the class of an Ingress before `ingressClassName`."""
_SERVICE: Final = "Service"
_POOL: Final = "InferencePool"
_GATEWAY_CLASS: Final = GroupKind("gateway.networking.k8s.io", "GatewayClass")
_AI_BACKEND: Final = GroupKind("aigateway.envoyproxy.io", "AIServiceBackend")
_BACKEND: Final = GroupKind("gateway.envoyproxy.io", "Backend")

T = TypeVar("T", bound=Object)


class GatewayKind(Model):
    """An entry of `gateways.yaml` or `bodies.yaml`: what limits a request, in seconds or bytes."""

    name: str
    kind: str = Field(
        pattern=r"^\w+\.[\w.-]+$", description="the kind of its routes, or of a policy, as `Kind.group`"
    )
    fields: tuple[str, ...] = Field(
        (), description="the fields of a policy that limit requests to its targets; the smallest counts"
    )
    classes: tuple[str, ...] = Field((), description="the classes of its Ingresses")
    gateway_classes: tuple[str, ...] = Field(
        (), description="the classes of the Gateways of its routes, or the controllers of these classes"
    )
    annotations: tuple[str, ...] = Field((), description="annotations that set the limit")
    policies: tuple[str, ...] = Field(
        (), description="kinds, as `Kind.group`, that may set the limit: it is unknown if one does"
    )
    named_by: str = Field("", description="the annotation of Services that names such a policy, as JSON")
    key: str = Field("", description="the key of the limit in an annotation of `key=value` pairs")
    default: int | None = Field(None, description="the limit without a setting; absent: none")
    parent: bool = Field(False, description="whether the default counts only if the route's Gateway is known")
    whole: bool = Field(False, description="whether the whole answer counts, also that of a stream")
    setting: str = Field(description="what sets the limit, as a person would write it")
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
    limit: float
    """Seconds or bytes."""
    is_default: bool


class _Limits(NamedTuple):
    """What is limited, and how its values are written."""

    gateways: Callable[[], tuple[GatewayKind, ...]]
    annotated: Callable[[str], float | None]
    field: Callable[[object], float | None]
    by_rule: bool
    """Whether the rules of routes set it, too."""


def routed(cluster: WholeObjects, namespace: str, own: Backends) -> list[Routed]:
    """Those of some Services and InferencePools of a namespace to which a route with a known time limit
    leads."""
    return _of(own, cluster.cache.once_for(namespace, _times, cluster, namespace))


def with_body_limit(cluster: WholeObjects, namespace: str, own: Backends) -> list[Routed]:
    """The same for a known limit of the size of a request."""
    return _of(own, cluster.cache.once_for(namespace, _bodies, cluster, namespace))


def _of(own: Backends, known: dict[str, list[tuple[int, Routed]]]) -> list[Routed]:
    names = (*(f"{_SERVICE} {each}" for each in own.services), *(f"{_POOL} {each}" for each in own.pools))
    found = sorted(chain.from_iterable(known.get(name, ()) for name in names), key=itemgetter(0))
    return [each for _, each in found]


def _times(cluster: WholeObjects, namespace: str) -> dict[str, list[tuple[int, Routed]]]:
    return _by_backend(_Limits(_gateways, _seconds, _seconds, True), cluster, namespace)


def _bodies(cluster: WholeObjects, namespace: str) -> dict[str, list[tuple[int, Routed]]]:
    return _by_backend(_Limits(_body_gateways, _nginx_bytes, bytes_or_zero, False), cluster, namespace)


def _by_backend(
    limits: _Limits, cluster: WholeObjects, namespace: str
) -> dict[str, list[tuple[int, Routed]]]:
    """What routes lead to, each with its position, by the backend."""
    found: dict[str, list[tuple[int, Routed]]] = {}
    for position, each in enumerate(_routed(limits, cluster, namespace)):
        found.setdefault(each.backend, []).append((position, each))
    return found


def _routed(limits: _Limits, cluster: WholeObjects, namespace: str) -> Iterator[Routed]:
    for gateway in limits.gateways():
        if gateway.fields:
            yield from _by_policy(gateway, limits, cluster, namespace)
            continue
        if any(_sets(each, limits, cluster, namespace) for each in gateway.policies):
            continue
        for route in cluster.typed(gateway.group_kind, namespace, type_of(gateway.group_kind)):
            if gateway.classes and _class_of(route) not in gateway.classes:
                continue
            if gateway.gateway_classes and not _is_of(route, gateway.gateway_classes, cluster, namespace):
                continue
            if gateway.parent and not _has_parent(route, cluster, namespace):
                continue
            name = f"{gateway.group_kind.kind} {route.name}"
            set_by_user = _annotated(gateway, route, limits)
            for reference, limit in _references(route):
                limited = limit if gateway.whole and limits.by_rule else set_by_user
                value = gateway.default if limited is None else limited
                backend = _followed(reference, cluster, namespace)
                if value:
                    yield Routed(gateway, name, f"{backend.kind} {backend.name}", value, limited is None)


def _sets(policy: str, limits: _Limits, cluster: WholeObjects, namespace: str) -> bool:
    """Whether a policy of a kind may set the limit: one of its fields is set, or they are unknown."""
    known = [each.fields for each in limits.gateways() if each.fields and each.kind == policy]
    return any(
        not known or any(dig(obj, *path.split(".")) is not None for fields in known for path in fields)
        for obj in cluster.every(GroupKind.parse(policy), namespace)
    )


def _by_policy(
    gateway: GatewayKind, limits: _Limits, cluster: WholeObjects, namespace: str
) -> Iterator[Routed]:
    """What policies limit that name a route, a Gateway or a backend."""
    for obj in cluster.every(gateway.group_kind, namespace):
        values = (limits.field(dig(obj, *each.split("."))) for each in gateway.fields)
        limit = min(filter(None, values), default=None)
        if limit is None:
            continue
        own_name = text(obj, "metadata", "name")
        name = f"{gateway.group_kind.kind} {own_name}"
        for service in cluster.every(SERVICE, namespace) if gateway.named_by else ():
            if f'"{own_name}"' in text(service, "metadata", "annotations", gateway.named_by):
                yield Routed(gateway, name, f"{_SERVICE} {text(service, 'metadata', 'name')}", limit, False)
        for target in (*maps(obj, "spec", "targetRefs"), mapping(obj, "spec", "targetRef")):
            for reference in _targeted(target, cluster, namespace):
                backend = _followed(reference, cluster, namespace)
                yield Routed(gateway, name, f"{backend.kind} {backend.name}", limit, False)


def _targeted(target: Json, cluster: WholeObjects, namespace: str) -> Iterator[objects.BackendReference]:
    """The backends behind the target of a policy."""
    kind, name = text(target, "kind"), text(target, "name")
    if kind in (_SERVICE, _POOL):
        yield objects.BackendReference(kind=kind, name=name)
    if kind not in (HTTP_ROUTE.kind, GATEWAY.kind):
        return
    for route in cluster.typed(HTTP_ROUTE, namespace, Route):
        parents = {each.name for each in route.spec.parent_refs}
        if route.name == name if kind == HTTP_ROUTE.kind else name in parents:
            yield from (reference for reference, _ in _references(route))


def _class_of(route: Object) -> str:
    own = route.spec.ingress_class_name if isinstance(route, Ingress) else ""
    return own or route.metadata.annotations.get(OLD_CLASS, "")


def _is_of(route: Object, classes: tuple[str, ...], cluster: WholeObjects, namespace: str) -> bool:
    """Whether a route belongs to a Gateway of one of the classes."""
    for parent in route.spec.parent_refs if isinstance(route, Route) else ():
        gateway = _known(cluster, GATEWAY, objects.Gateway, parent.namespace or namespace, parent.name)
        if gateway is None:
            continue
        name = gateway.spec.gateway_class_name
        of_class = _known(cluster, _GATEWAY_CLASS, objects.GatewayClass, "", name)
        if name in classes or (of_class is not None and of_class.spec.controller_name in classes):
            return True
    return False


def _has_parent(route: Object, cluster: WholeObjects, namespace: str) -> bool:
    """Whether a Gateway of a route is known."""
    parents = route.spec.parent_refs if isinstance(route, Route) else ()
    return any(cluster.named(GATEWAY, each.namespace or namespace, each.name) for each in parents)


def _known(cluster: WholeObjects, kind: GroupKind, as_type: type[T], namespace: str, name: str) -> T | None:
    """An object of a name as a type; None if it is unknown or has a value of another type."""
    found = cluster.named(kind, namespace, name)
    return None if found is None else readable(found, as_type)


def _annotated(gateway: GatewayKind, route: Object, limits: _Limits) -> float | None:
    for annotation in gateway.annotations:
        value = route.metadata.annotations.get(annotation)
        if value is not None and gateway.key:
            pairs = (each.strip().partition("=") for each in value.split(","))
            value = next((after for key, _, after in pairs if key == gateway.key), None)
        if value is not None:
            return limits.annotated(value.strip()) or 0.0
    return None


def _references(route: Object) -> Iterator[tuple[objects.BackendReference, float | None]]:
    """The backends of a route, each with the time that its rule sets."""
    if isinstance(route, Ingress):
        yield from ((_service(each.name), None) for _, each in route.services())
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


_gateways = data.entries(GatewayKind, __package__, "gateways.yaml")


_body_gateways = data.entries(GatewayKind, __package__, "bodies.yaml")


def _seconds(value: object) -> float | None:
    """`90s`, `2m`, 90."""
    return seconds(str(value)) if isinstance(value, str | int) and not isinstance(value, bool) else None


def _nginx_bytes(value: str) -> float | None:
    """`25m`, `1g`, `1048576`, as nginx writes sizes."""
    number, unit = (value[:-1], value[-1].lower()) if value[-1:].isalpha() else (value, "")
    power = {"": 0, "k": 1, "m": 2, "g": 3}.get(unit)
    digits = whole_number(number, 12)
    return None if power is None or digits is None else digits * 1024.0**power
