"""Services, and the objects that send requests to them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from policies.kube.objects.base import EMPTY, IntOrString, Part
from policies.kube.objects.metadata import Object


class ServicePort(Part):
    name: str = ""
    port: int | None = None
    target_port: IntOrString | None = None


class ServiceSpec(Part):
    selector: Mapping[str, str] = EMPTY
    type: str = ""
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    external_name: str = ""
    publish_not_ready_addresses: bool = False
    ports: tuple[ServicePort, ...] = ()


class Service(Object):
    spec: ServiceSpec = ServiceSpec()


class NamedService(Part):
    name: str = ""


class IngressBackend(Part):
    service: NamedService = NamedService()


class IngressPath(Part):
    backend: IngressBackend = IngressBackend()


class IngressPaths(Part):
    paths: tuple[IngressPath, ...] = ()


class IngressRule(Part):
    http: IngressPaths = IngressPaths()


class IngressSpec(Part):
    default_backend: IngressBackend = IngressBackend()
    rules: tuple[IngressRule, ...] = ()


class Ingress(Object):
    spec: IngressSpec = IngressSpec()


class BackendReference(Part):
    kind: str = ""
    name: str = ""
    namespace: str = ""


class RouteRule(Part):
    backend_refs: tuple[BackendReference, ...] = ()


class RouteSpec(Part):
    rules: tuple[RouteRule, ...] = ()


class Route(Object):
    """An HTTPRoute, GRPCRoute or another route of the Gateway API."""

    spec: RouteSpec = RouteSpec()
