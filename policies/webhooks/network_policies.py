"""Whether NetworkPolicies keep the API server from the server of a webhook.

The API server is no pod: only rules without peers and those with an address block admit it. Where it comes by
an agent in a pod, that pod is in kube-system.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from policies.core.contracts import Facts
from policies.core.network_policies import others_may_admit
from policies.kube.group_kinds import NETWORK_POLICY
from policies.kube.objects.limits import NAMESPACE_NAME
from policies.kube.objects.metadata import LabelSelector
from policies.kube.objects.network_policies import (
    NetworkPolicy,
    NetworkPolicyIngressRule,
    NetworkPolicyPeer,
)
from policies.kube.objects.webhooks import ServiceReference
from policies.webhooks.requests import pods_behind, service_of

_OF_AGENTS: Final = "kube-system"


class Hiding(NamedTuple):
    """A NetworkPolicy that keeps the API server from the server of a webhook."""

    name: str
    closed_port: int | None
    """The port of the pods, if no policy admits anything to it."""


def hiding_policy(service: ServiceReference, facts: Facts) -> Hiding | None:
    """A NetworkPolicy that selects all pods behind a webhook's Service, if none of these policies admits the
    API server; None if there is none, or if the pods or their port are unknown."""
    pods, port = list(pods_behind(service, facts)), _port(service, facts)
    if facts.whole is None or not pods or port is None or service.namespace == _OF_AGENTS:
        return None
    if others_may_admit(facts.whole, service.namespace):
        return None
    found = [
        policy
        for policy in facts.whole.typed(NETWORK_POLICY, service.namespace, NetworkPolicy)
        if "Ingress" in policy.spec.types and any(map(policy.spec.pod_selector.matches, pods))
    ]
    if any(_admits(rule, port) for policy in found for rule in policy.spec.ingress):
        return None
    closed = None if any(rule.may_include(port) for policy in found for rule in policy.spec.ingress) else port
    covering = (policy for policy in found if all(map(policy.spec.pod_selector.matches, pods)))
    return next((Hiding(policy.name, closed) for policy in covering), None)


def _port(service: ServiceReference, facts: Facts) -> int | None:
    """The port of the pods that the API server asks; None if only its name is known."""
    found = service_of(service, facts)
    for each in () if found is None else found.spec.ports:
        if each.port == service.port:
            target = each.target_port or each.port
            return target if isinstance(target, int) else None
    return None


def _admits(rule: NetworkPolicyIngressRule, port: int) -> bool:
    """Whether a rule may admit the API server on a port."""
    return rule.may_include(port) and (not rule.peers or any(map(_may_be_api_server, rule.peers)))


def _may_be_api_server(peer: NetworkPolicyPeer) -> bool:
    if peer.ip_block is not None:
        return True
    selector = peer.namespace_selector
    return selector is not None and (
        selector.matches({NAMESPACE_NAME: _OF_AGENTS}) or _OF_AGENTS in _values(selector)
    )


def _values(selector: LabelSelector) -> set[str]:
    return {
        *selector.match_labels.values(),
        *(it for each in selector.match_expressions for it in each.values),
    }
