"""Whether a webhook certainly receives a request, or NetworkPolicies keep the API server from its server.

Conditions in CEL (`matchConditions`) are not read: a webhook with one is never certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from policies.core.contracts import Facts
from policies.core.network_policies import others_may_admit
from policies.core.resources import Resource
from policies.core.services import selected_workloads
from policies.kube.group_kinds import NETWORK_POLICY
from policies.kube.json import mapping
from policies.kube.metadata import labels_of
from policies.kube.objects.limits import NAMESPACE_NAME, Namespace
from policies.kube.objects.metadata import LabelSelector
from policies.kube.objects.network_policies import (
    NetworkPolicy,
    NetworkPolicyIngressRule,
    NetworkPolicyPeer,
)
from policies.kube.objects.services import Service
from policies.kube.objects.webhooks import RuleWithOperations, ServiceReference, Webhook


def covers_resource(
    webhook: Webhook, group: str, resource: str, operations: Iterable[str], *, namespaced: bool
) -> bool:
    """Whether a rule includes one of the operations on a resource, or on a subresource such as
    `nodes/status`."""
    if webhook.match_conditions:
        return False
    return any(_includes(rule, group, resource, operations, namespaced) for rule in webhook.rules)


def _includes(
    rule: RuleWithOperations, group: str, resource: str, operations: Iterable[str], namespaced: bool
) -> bool:
    if rule.scope not in ("*", "Namespaced" if namespaced else "Cluster"):
        return False
    if {"*", group}.isdisjoint(rule.api_groups) or {"*", *operations}.isdisjoint(rule.operations):
        return False
    parent, slash, sub = resource.partition("/")
    names = {"*/*", f"{parent}/*", f"*/{sub}", resource} if slash else {"*", "*/*", f"{parent}/*", resource}
    return not names.isdisjoint(rule.resources)


def covers_namespace(webhook: Webhook, namespace: str, facts: Facts) -> bool:
    """Whether the namespaceSelector certainly selects a namespace."""
    selector, known = webhook.namespace_selector, facts.cluster_objects(Namespace)
    found = None if known is None else known.named(namespace)
    if found is None and not _keys(selector) <= {NAMESPACE_NAME}:
        return False
    return selector.matches({NAMESPACE_NAME: namespace} if found is None else found.labels)


def _keys(selector: LabelSelector) -> set[str]:
    return {*selector.match_labels, *(each.key for each in selector.match_expressions)}


def covers_own_pods(webhook: Webhook, service: ServiceReference, facts: Facts) -> bool:
    """Whether the objectSelector certainly selects the pods behind the webhook's Service."""
    if not _keys(webhook.object_selector):
        return True
    pods = list(pods_behind(service, facts))
    return bool(pods) and all(map(webhook.object_selector.matches, pods))


def covers_any_object(webhook: Webhook) -> bool:
    """Whether the objectSelector is empty."""
    return not _keys(webhook.object_selector)


def service_of(reference: ServiceReference, facts: Facts) -> Service | None:
    """The Service of a webhook; None if it is unknown."""
    services = facts.cluster.listing(Resource.SERVICES, reference.namespace)
    return None if services is None else services.objects(Service).named(reference.name)


def pods_behind(service: ServiceReference, facts: Facts) -> Iterable[Mapping[str, str]]:
    """The labels of the pods of each workload that a Service selects."""
    found = service_of(service, facts)
    if found is None:
        return ()
    workloads = facts.cluster.listing(Resource.WORKLOADS, service.namespace)
    selected = selected_workloads(found, workloads)
    return (labels_of(mapping(each, "spec", "template")) for each in selected)


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
