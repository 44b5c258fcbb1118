"""Gateways that send requests to Services, and how long they wait for an answer, from `gateways.yaml`."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from pydantic import Field

from policies.commands.durations import seconds
from policies.core import data
from policies.core.facts import WholeObjects
from policies.core.settings import Model
from policies.kube.group_kinds import GroupKind
from policies.kube.objects.kinds import type_of
from policies.kube.objects.metadata import Object
from policies.kube.objects.reading import WrongTypeError, read
from policies.kube.objects.services import Ingress, OpenShiftRoute, Route, VirtualService

_CLASS = "kubernetes.io/ingress.class"


class Gateway(Model):
    """An entry of `gateways.yaml`."""

    name: str
    kind: str = Field(pattern=r"^\w+\.[\w.-]+$", description="the kind of its routes, as `Kind.group`")
    classes: tuple[str, ...] = Field((), description="the classes of its Ingresses")
    annotations: tuple[str, ...] = Field((), description="annotations that set the time")
    key: str = Field("", description="the key of the time in an annotation of `key=value` pairs")
    default: int | None = Field(None, description="seconds without a setting; absent: no limit")
    whole: bool = Field(False, description="whether the whole answer counts, also that of a stream")
    source: str = Field(description="the documentation that shows it")

    @property
    def group_kind(self) -> GroupKind:
        return GroupKind.parse(self.kind)


class RoutedService(Struct, frozen=True):
    """A Service behind a route."""

    gateway: Gateway
    route: str
    """The route's kind and name."""
    service: str
    seconds: float
    is_default: bool


def routed_services(cluster: WholeObjects, namespace: str) -> Iterator[RoutedService]:
    """The Services of a namespace that a route with a known time limit leads to."""
    for gateway in _gateways():
        kind = type_of(gateway.group_kind)
        for obj in cluster.every(gateway.group_kind, namespace):
            try:
                route = read(obj, kind)
            except WrongTypeError:
                continue  # its own review says so
            if gateway.classes and _class_of(route) not in gateway.classes:
                continue
            name = f"{gateway.group_kind.kind} {route.name}"
            set_by_user = _annotated(gateway, route)
            for service, limit in _backends(route):
                own = limit if gateway.whole else set_by_user
                time = gateway.default if own is None else own
                if time:
                    yield RoutedService(gateway, name, service, time, own is None)


def _class_of(route: Object) -> str:
    own = route.spec.ingress_class_name if isinstance(route, Ingress) else ""
    return own or route.metadata.annotations.get(_CLASS, "")


def _annotated(gateway: Gateway, route: Object) -> float | None:
    for annotation in gateway.annotations:
        value = route.metadata.annotations.get(annotation)
        if value is not None and gateway.key:
            pairs = (each.strip().partition("=") for each in value.split(","))
            value = next((after for key, _, after in pairs if key == gateway.key), None)
        if value is not None:
            return seconds(value.strip()) or 0.0
    return None


def _backends(route: Object) -> Iterator[tuple[str, float | None]]:
    """The Services of a route, each with the time that its rule sets."""
    if isinstance(route, Ingress):
        yield route.spec.default_backend.service.name, None
        for paths in route.spec.rules:
            yield from ((path.backend.service.name, None) for path in paths.http.paths)
    elif isinstance(route, OpenShiftRoute):
        yield route.spec.to.name, None
    elif isinstance(route, Route):
        for rule in route.spec.rules:
            times = [seconds(each) for each in (rule.timeouts.request, rule.timeouts.backend_request) if each]
            limit = min((each for each in times if each), default=None)
            yield from ((each.name, limit) for each in rule.backend_refs if each.kind in ("", "Service"))
    elif isinstance(route, VirtualService):
        for http in route.spec.http:
            names = (each.destination.host.partition(".")[0] for each in http.route)
            yield from ((name, seconds(http.timeout)) for name in names)


@data.table
def _gateways() -> tuple[Gateway, ...]:
    return data.load_list(Gateway, __package__, "gateways.yaml")
