"""NetworkPolicies."""

from __future__ import annotations

import msgspec

from policies.kube.objects.metadata import IntOrString, LabelSelector, Object, Part, Present


class NetworkPolicyPeer(Part):
    ip_block: Present | None = None
    namespace_selector: LabelSelector | None = None
    pod_selector: LabelSelector | None = None


class NetworkPolicyPort(Part):
    port: IntOrString | None = None
    end_port: int | None = None
    protocol: str = "TCP"

    def may_include(self, number: int) -> bool:
        """Whether it is, or may be by name, a port of the pods."""
        if not isinstance(self.port, int):
            return True  # all, or a name
        return self.port <= number <= (self.end_port or self.port)


class PortsRule(Part):
    """The common part of rules for incoming and for outgoing connections."""

    ports: tuple[NetworkPolicyPort, ...] = ()

    def may_include(self, number: int) -> bool:
        """Whether it is, or may be, about a port of the pods."""
        return not self.ports or any(port.may_include(number) for port in self.ports)


class NetworkPolicyIngressRule(PortsRule):
    peers: tuple[NetworkPolicyPeer, ...] = msgspec.field(default=(), name="from")


class NetworkPolicyEgressRule(PortsRule):
    to: tuple[NetworkPolicyPeer, ...] = ()


class NetworkPolicySpec(Part):
    pod_selector: LabelSelector = LabelSelector()
    policy_types: tuple[str, ...] = ()
    ingress: tuple[NetworkPolicyIngressRule, ...] = ()
    egress: tuple[NetworkPolicyEgressRule, ...] = ()

    @property
    def types(self) -> tuple[str, ...]:
        """`policyTypes`, with the API server's default."""
        return self.policy_types or (("Ingress", "Egress") if self.egress else ("Ingress",))


class NetworkPolicy(Object):
    spec: NetworkPolicySpec = NetworkPolicySpec()
