"""Services, the objects that send requests to them, and the monitors that scrape them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from policies.kube.objects.metadata import EMPTY, IntOrString, LabelSelector, Object, Part


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
    session_affinity: str = ""
    ports: tuple[ServicePort, ...] = ()


class Service(Object):
    spec: ServiceSpec = ServiceSpec()

    @property
    def has_address(self) -> bool:
        """Whether it has an address of its own, for which the kubelet sets variables and behind which
        connections are distributed: neither a headless Service nor an ExternalName."""
        return self.spec.cluster_ip != "None" and self.spec.type != "ExternalName"


class NamedPort(Part):
    name: str = ""
    number: int | None = None


class NamedService(Part):
    name: str = ""
    port: NamedPort = NamedPort()


class IngressBackend(Part):
    service: NamedService = NamedService()


class IngressPath(Part):
    backend: IngressBackend = IngressBackend()


class IngressPaths(Part):
    paths: tuple[IngressPath, ...] = ()


class IngressRule(Part):
    host: str = ""
    http: IngressPaths = IngressPaths()


class IngressSpec(Part):
    ingress_class_name: str = ""
    default_backend: IngressBackend = IngressBackend()
    rules: tuple[IngressRule, ...] = ()


class Ingress(Object):
    spec: IngressSpec = IngressSpec()

    def services(self) -> Iterator[tuple[str, NamedService]]:
        """The Services of its backends, each with the field path of its name."""
        if self.spec.default_backend.service.name:
            yield "spec.defaultBackend.service.name", self.spec.default_backend.service
        for number, rule in enumerate(self.spec.rules):
            for index, path in enumerate(rule.http.paths):
                if path.backend.service.name:
                    at = f"spec.rules[{number}].http.paths[{index}].backend.service.name"
                    yield at, path.backend.service


class BackendReference(Part):
    kind: str = ""
    name: str = ""
    namespace: str = ""
    port: int | None = None


class RouteTimeouts(Part):
    request: str = ""
    backend_request: str = ""


class RouteRule(Part):
    backend_refs: tuple[BackendReference, ...] = ()
    timeouts: RouteTimeouts = RouteTimeouts()


class RouteSpec(Part):
    parent_refs: tuple[BackendReference, ...] = ()
    hostnames: tuple[str, ...] = ()
    rules: tuple[RouteRule, ...] = ()


class Route(Object):
    """An HTTPRoute, GRPCRoute or another route of the Gateway API, or an AIGatewayRoute of Envoy."""

    spec: RouteSpec = RouteSpec()

    def services(self) -> Iterator[tuple[str, BackendReference]]:
        """The references to Services, each with the field path of its name."""
        for number, rule in enumerate(self.spec.rules):
            for index, each in enumerate(rule.backend_refs):
                if each.name and each.kind in ("", "Service"):
                    yield f"spec.rules[{number}].backendRefs[{index}].name", each


class NumberedPort(Part):
    number: int = 0


class EndpointPicker(Part):
    """The Service that chooses the pod for each request."""

    name: str = ""
    port: NumberedPort = NumberedPort()
    port_number: int = 0
    """The port in v1alpha2."""


class InferencePoolSpec(Part):
    selector: Mapping[str, str | Mapping[str, str]] = EMPTY
    """In v1 with `matchLabels`, in v1alpha2 the labels themselves."""
    target_ports: tuple[NumberedPort, ...] = ()
    target_port_number: int = 0
    """The only target port in v1alpha2."""
    endpoint_picker_ref: EndpointPicker | None = None
    extension_ref: EndpointPicker | None = None
    """The picker in v1alpha2."""


class InferencePool(Object):
    """Of the Gateway API's extension for inference: v1, and v1alpha2 in another group."""

    spec: InferencePoolSpec = InferencePoolSpec()

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether it selects pods with these labels."""
        nested = self.spec.selector.get("matchLabels")
        wanted = nested if isinstance(nested, Mapping) else self.spec.selector
        return bool(wanted) and wanted.items() <= labels.items()

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports to which it sends."""
        numbers = (self.spec.target_port_number, *(each.number for each in self.spec.target_ports))
        return tuple(filter(None, numbers))

    @property
    def picker(self) -> tuple[str, int]:
        """The name and port of the Service of its endpoint picker."""
        picker = self.spec.endpoint_picker_ref or self.spec.extension_ref or EndpointPicker()
        return picker.name, picker.port.number or picker.port_number


class GatewaySpec(Part):
    gateway_class_name: str = ""


class Gateway(Object):
    spec: GatewaySpec = GatewaySpec()


class GatewayClassSpec(Part):
    controller_name: str = ""


class GatewayClass(Object):
    spec: GatewayClassSpec = GatewayClassSpec()


class AIServiceBackendSpec(Part):
    backend_ref: BackendReference = BackendReference()


class AIServiceBackend(Object):
    """A backend of Envoy's AI gateway."""

    spec: AIServiceBackendSpec = AIServiceBackendSpec()


class NamedEndpoint(Part):
    hostname: str = ""


class BackendEndpoint(Part):
    fqdn: NamedEndpoint = NamedEndpoint()


class BackendSpec(Part):
    endpoints: tuple[BackendEndpoint, ...] = ()


class Backend(Object):
    """A backend of Envoy Gateway."""

    spec: BackendSpec = BackendSpec()


class OpenShiftRouteSpec(Part):
    to: BackendReference = BackendReference()


class OpenShiftRoute(Object):
    spec: OpenShiftRouteSpec = OpenShiftRouteSpec()


class MeshDestination(Part):
    host: str = ""


class MeshRoute(Part):
    destination: MeshDestination = MeshDestination()


class MeshHttpRoute(Part):
    route: tuple[MeshRoute, ...] = ()
    timeout: str = ""


class VirtualServiceSpec(Part):
    http: tuple[MeshHttpRoute, ...] = ()


class VirtualService(Object):
    """Istio's."""

    spec: VirtualServiceSpec = VirtualServiceSpec()


class MonitorEndpoint(Part):
    """A port that is asked for metrics."""

    port: IntOrString = ""
    """The name of a Service's port, or of a container's for a PodMonitor."""
    target_port: IntOrString | None = None
    """The name or number of a container's port."""
    port_number: int | None = None
    """The number of a container's port, in a PodMonitor."""


class NamespaceSelector(Part):
    any: bool = False
    match_names: tuple[str, ...] = ()


class MonitorSpec(Part):
    selector: LabelSelector | None = None
    namespace_selector: NamespaceSelector = NamespaceSelector()
    endpoints: tuple[MonitorEndpoint, ...] = ()
    pod_metrics_endpoints: tuple[MonitorEndpoint, ...] = ()


class Monitor(Object):
    """A ServiceMonitor or PodMonitor."""

    spec: MonitorSpec = MonitorSpec()

    def looks_only_in(self, namespace: str) -> bool:
        """Whether it looks in a namespace, and in no other one."""
        chosen = self.spec.namespace_selector
        own = self.metadata.namespace or "default"
        return not chosen.any and set(chosen.match_names or (own,)) == {namespace}
