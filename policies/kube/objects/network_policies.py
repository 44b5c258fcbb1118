"""NetworkPolicies."""

from __future__ import annotations

import msgspec

from policies.kube.objects.metadata import IntOrString, LabelSelector, Object, Part


class IPBlock(Part):
    """Only its presence counts."""


class NetworkPolicyPeer(Part):
    ip_block: IPBlock | None = None
    namespace_selector: LabelSelector | None = None


class NetworkPolicyPort(Part):
    port: IntOrString | None = None
    end_port: int | None = None


class NetworkPolicyIngressRule(Part):
    peers: tuple[NetworkPolicyPeer, ...] = msgspec.field(default=(), name="from")
    ports: tuple[NetworkPolicyPort, ...] = ()


class NetworkPolicySpec(Part):
    pod_selector: LabelSelector = LabelSelector()
    policy_types: tuple[str, ...] = ("Ingress",)
    ingress: tuple[NetworkPolicyIngressRule, ...] = ()


class NetworkPolicy(Object):
    spec: NetworkPolicySpec = NetworkPolicySpec()
