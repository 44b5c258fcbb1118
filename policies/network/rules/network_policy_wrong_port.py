"""network-policy-wrong-port: NetworkPolicies that allow a port of a Service, and not that of pods or DNS, and
those that keep pods from a Service that they ask."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple

from policies.commands import PROXY_VARIABLES
from policies.core.contracts import Certainty, Facts, Finding, Findings, PodTemplate, Target, rule
from policies.core.facts import WholeObjects
from policies.core.network_policies import TUNNELS, is_added, others_may_admit
from policies.core.services import selecting
from policies.kube.group_kinds import NAMESPACE, NETWORK_POLICY, SERVICE, SERVING
from policies.kube.metadata import labels_of
from policies.kube.objects.limits import NAMESPACE_NAME
from policies.kube.objects.metadata import LabelSelector
from policies.kube.objects.network_policies import (
    NetworkPolicy,
    NetworkPolicyEgressRule,
    NetworkPolicyPeer,
    PortsRule,
)
from policies.kube.objects.reading import readable
from policies.kube.objects.services import Service, ServicePort
from policies.kube.pods import Container, Role
from policies.network import cilium
from policies.network.authorization import refusing

_URL: Final = re.compile(
    r"\b([a-z][a-z0-9+]{0,20})://(?:[^/@\s]{0,200}@)?([a-z0-9.-]{1,253})(?::([0-9]{1,5}))?"
)
_PORTS: Final = {"http": 80, "https": 443}
_DNS: Final = (53, 5353)
"""The ports of the pods of CoreDNS, and of OpenShift's."""
_ALL: Final = LabelSelector()
_MAX: Final = 4
"""Findings for one workload."""


_Rules = Sequence[PortsRule]


class _Labels(NamedTuple):
    of: Mapping[str, str]
    complete: bool
    """Whether there are no others but those that controllers add."""

    def may_match(self, selector: LabelSelector) -> bool:
        if any(self.of.get(key, value) != value for key, value in selector.match_labels.items()):
            return False
        keys = chain(selector.match_labels, (each.key for each in selector.match_expressions))
        return not self.complete or any(map(is_added, keys)) or selector.matches(self.of)


class _Pods(NamedTuple):
    """Pods at one end of a connection."""

    labels: _Labels
    namespace: str
    labels_of_namespace: _Labels

    def may_be(self, peers: Sequence[NetworkPolicyPeer], namespace: str) -> bool:
        """Whether a rule of a policy in a namespace may be about them."""
        return not peers or any(self._may_be(each, namespace) for each in peers)

    def _may_be(self, peer: NetworkPolicyPeer, namespace: str) -> bool:
        if peer.ip_block is not None:
            return True
        if peer.namespace_selector is None:
            near = self.namespace == namespace
        else:
            near = self.labels_of_namespace.may_match(peer.namespace_selector)
        return near and (peer.pod_selector is None or self.labels.may_match(peer.pod_selector))


def check(target: Target, facts: Facts) -> Findings:
    cluster = facts.whole
    if cluster is None or target.has_controller:
        return
    for template in target.templates:
        labels = template.typed.metadata.labels
        near = _near(labels, facts.namespace, cluster)
        selecting_policies = [each for each in near if each.spec.pod_selector.matches(labels)]
        if selecting_policies:
            at_server = _at_server(template, selecting_policies, facts)
            at_client = _at_client(template, selecting_policies, cluster, facts)
            yield from islice(chain(at_server, at_client), _MAX)
            yield from _without_names(template, selecting_policies, cluster, facts)
        own = _pods(_Labels(labels, target.kind in SERVING), facts.namespace, cluster)
        yield from islice(_shut_out(template, own, selecting_policies, cluster), _MAX)


def _near(labels: Mapping[str, str], namespace: str, cluster: WholeObjects) -> Iterator[NetworkPolicy]:
    """The policies of a namespace that select one of these labels, and those that name no label."""
    policies = _policies_of(namespace, cluster)
    return chain.from_iterable(policies.get(key, ()) for key in (None, *labels.items()))


def _policies_of(namespace: str, cluster: WholeObjects) -> dict[tuple[str, str] | None, list[NetworkPolicy]]:
    return cluster.cache.once_for(("policies", namespace), _policies, cluster, namespace)


def _policies(cluster: WholeObjects, namespace: str) -> dict[tuple[str, str] | None, list[NetworkPolicy]]:
    """The policies by one of the labels that they select; None: without one."""
    found: dict[tuple[str, str] | None, list[NetworkPolicy]] = {}
    if not others_may_admit(cluster, namespace):
        for each in cluster.typed(NETWORK_POLICY, namespace, NetworkPolicy):
            label = next(iter(each.spec.pod_selector.match_labels.items()), None)
            found.setdefault(label, []).append(each)
    return found


def _at_server(template: PodTemplate, policies: list[NetworkPolicy], facts: Facts) -> Findings:
    """Services whose requests to these pods no rule for incoming connections allows."""
    restricting = [
        (each, each.spec.ingress) for each in policies if "Ingress" in each.spec.types and each.spec.ingress
    ]
    declared = {
        number: (name, container)
        for container in template.containers(Role.MAIN, Role.SIDECAR)
        for number, name in container.tcp_ports.items()
    }
    for service in selecting(template.typed.metadata.labels, facts) if restricting else ():
        for port in service.spec.ports:
            named = (number for number, (name, _) in declared.items() if name and name == port.target_port)
            sent = port.target_port if isinstance(port.target_port, int) else next(named, None)
            if sent is None or sent not in declared or port.port in declared:
                continue
            if (policy := _wrong(port, sent, restricting)) is not None:
                yield _finding(template, declared[sent][1], policy, service, port, sent)


def _at_client(
    template: PodTemplate, policies: list[NetworkPolicy], cluster: WholeObjects, facts: Facts
) -> Findings:
    """Services that these pods ask, and that no rule for outgoing connections allows."""
    restricting = [
        (each, each.spec.egress) for each in policies if "Egress" in each.spec.types and each.spec.egress
    ]
    wrong: dict[tuple[int, int], NetworkPolicy | None] = {}
    for container in template.containers() if restricting else ():
        for name, namespace, number in _asked(container, facts.namespace):
            obj = cluster.named(SERVICE, namespace, name)
            service = None if obj is None else readable(obj, Service)
            for port in () if service is None or not service.has_address else service.spec.ports:
                sent = port.target_port if isinstance(port.target_port, int) else None
                if service is None or sent is None or port.port != number:
                    continue
                if (number, sent) not in wrong:
                    wrong[number, sent] = _wrong(port, sent, restricting)
                if (policy := wrong[number, sent]) is not None:
                    yield _finding(template, container, policy, service, port, sent)


def _without_names(
    template: PodTemplate, policies: list[NetworkPolicy], cluster: WholeObjects, facts: Facts
) -> Findings:
    """Pods that may ask a Service, and that can't resolve its name.

    Without a policy for all pods in these files, the one that allows DNS may be somewhere else."""
    restricting = [each.spec for each in policies if "Egress" in each.spec.types]
    rules = tuple(rule for each in restricting for rule in each.egress)
    if not any(each.pod_selector == _ALL for each in restricting) or any(map(_reaches_dns, rules)):
        return
    if template.typed.spec.host_network:
        return
    for container in template.containers():
        for name, namespace, number in _asked(container, facts.namespace):
            if cluster.named(SERVICE, namespace, name) is not None and _allows(rules, number):
                yield Finding(
                    template.at(container),
                    f"NetworkPolicies allow requests to Service {name}, but none of them lets these pods "
                    "resolve its name: no rule for outgoing connections has port 53 over UDP.",
                    "Allow port 53 over UDP and TCP, without `to` or to the namespace kube-system.",
                    Certainty.LIKELY,
                )
                return


def _shut_out(
    template: PodTemplate, own: _Pods, selecting_policies: list[NetworkPolicy], cluster: WholeObjects
) -> Findings:
    """Services that these pods ask, while the policies of one side admit other requests only.

    Where no policy admits anything, those that do may be somewhere else."""
    if template.typed.spec.host_network:
        return
    spec = template.typed.spec
    account = spec.service_account_name or ("default" if own.labels.complete else "")
    egress = [each.spec.egress for each in selecting_policies if "Egress" in each.spec.types]
    outgoing = tuple(chain.from_iterable(egress))
    allowing: dict[tuple[int, int], list[NetworkPolicyEgressRule]] = {}
    has_aims = any(not any(map(port.may_include, _DNS)) for rule in outgoing for port in rule.ports)
    for container in template.containers():
        if any(each.name in PROXY_VARIABLES for each in container.typed.env):
            continue
        for name, namespace, number in _asked(container, own.namespace):
            obj = cluster.named(SERVICE, namespace, name)
            service = None if obj is None else readable(obj, Service)
            if service is None or not service.has_address or not service.spec.selector:
                continue
            if namespace == own.namespace and service.spec.selector.items() <= own.labels.of.items():
                continue  # its own URL, for others
            refused = refusing(service, namespace, own.namespace, account, cluster) if account else None
            if refused is not None:
                yield Finding(
                    template.at(container),
                    f"AuthorizationPolicy {refused.name} lets others than service account {account} of "
                    f"namespace {own.namespace} use Service {name}, which container {container.name} asks. "
                    "Istio answers with status 403.",
                    "Add the account or its namespace to a rule of the policy.",
                    Certainty.LIKELY,
                )
            sent = next((_sent(each) for each in service.spec.ports if each.port == number), None)
            if sent is None:
                continue
            asked = _pods(_Labels(service.spec.selector, complete=False), namespace, cluster)
            said = f"to port {sent} of the pods of Service {name}, which container {container.name} asks"
            if has_aims and (sent, number) not in allowing:
                allowing[sent, number] = list(_outgoing(own, (sent, number, *TUNNELS), cluster))
            if has_aims and not any(asked.may_be(each.to, own.namespace) for each in allowing[sent, number]):
                yield Finding(
                    template.at(container),
                    f"NetworkPolicies allow some requests of these pods, but none {said}. Each of these "
                    "times out.",
                    f"Add a rule for egress with port {sent}.",
                    Certainty.LIKELY,
                )
                continue
            closed = _closed(own, asked, sent, cluster)
            client = cilium.Client(own.namespace, own.labels.of, own.labels.complete)
            policy = "" if closed is None else f"NetworkPolicy {closed.name}"
            if not policy and (of_cilium := cilium.refusing(service, namespace, sent, client, cluster)):
                policy = f"CiliumNetworkPolicy {of_cilium}"
            if policy:
                yield Finding(
                    template.at(container),
                    f"{policy} of namespace {namespace} admits other pods than these {said}. Each of their "
                    "requests times out.",
                    "Add these pods, or their namespace, to its rules for ingress.",
                    Certainty.LIKELY,
                )


def _outgoing(own: _Pods, ports: Sequence[int], cluster: WholeObjects) -> Iterator[NetworkPolicyEgressRule]:
    """The rules for outgoing connections of all policies that may select these pods, if they may be about
    one of the ports."""
    for each in chain.from_iterable(_policies_of(own.namespace, cluster).values()):
        if "Egress" in each.spec.types and own.labels.may_match(each.spec.pod_selector):
            yield from (rule for rule in each.spec.egress if any(map(rule.may_include, ports)))


def _closed(own: _Pods, asked: _Pods, sent: int, cluster: WholeObjects) -> NetworkPolicy | None:
    """A policy that certainly selects the pods of a Service, if none that may do so admits these pods."""
    near = [
        each
        for each in chain.from_iterable(_policies_of(asked.namespace, cluster).values())
        if "Ingress" in each.spec.types and asked.labels.may_match(each.spec.pod_selector)
    ]
    rules = [rule for each in near for rule in each.spec.ingress]
    if not rules or any(
        any(map(each.may_include, (sent, *TUNNELS))) and own.may_be(each.peers, asked.namespace)
        for each in rules
    ):
        return None
    selectors = ((each, each.spec.pod_selector) for each in near if each.spec.ingress)
    certain = (
        each
        for each, selector in selectors
        if selector.matches(asked.labels.of) and not selector.match_expressions
    )
    return next(certain, None)


def _sent(port: ServicePort) -> int | None:
    """The port of the pods; None if it has a name."""
    target = port.target_port or port.port
    return target if isinstance(target, int) else None


def _pods(labels: _Labels, namespace: str, cluster: WholeObjects) -> _Pods:
    found = cluster.named(NAMESPACE, "", namespace)
    # Others may label a namespace, too.
    known = {**({} if found is None else labels_of(found)), NAMESPACE_NAME: namespace}
    return _Pods(labels, namespace, _Labels(known, complete=False))


def _reaches_dns(rule: NetworkPolicyEgressRule) -> bool:
    """Whether a rule may allow requests to the DNS server. Peers in the pods' own namespace are others."""
    if rule.ports:
        return any(each.protocol == "UDP" and any(map(each.may_include, _DNS)) for each in rule.ports)
    return not rule.to or any(each.ip_block or each.namespace_selector for each in rule.to)


def _asked(container: Container, own: str) -> Iterator[tuple[str, str, int]]:
    """The Services whose URLs a container has, with their namespaces and ports."""
    texts = chain((each.value for each in container.typed.env), container.typed.argv)
    urls = dict.fromkeys(match.groups() for text in texts if "://" in text for match in _URL.finditer(text))
    for scheme, host, port in urls:
        labels = host.split(".")
        number = int(port) if port else _PORTS.get(scheme, 0)
        if number and (len(labels) < 3 or labels[2] == "svc"):
            yield labels[0], labels[1] if len(labels) > 1 else own, number


def _wrong(
    port: ServicePort, sent: int, restricting: Sequence[tuple[NetworkPolicy, _Rules]]
) -> NetworkPolicy | None:
    """A policy that allows a port of a Service, if none allows the port of the pods that it sends to."""
    if not sent or not port.port or sent == port.port:
        return None
    if any(_allows(rules, sent) for _, rules in restricting):
        return None
    return next((policy for policy, rules in restricting if _allows(rules, port.port)), None)


def _allows(rules: _Rules, number: int) -> bool:
    return any(each.may_include(number) for each in rules)


def _finding(
    template: PodTemplate,
    container: Container,
    policy: NetworkPolicy,
    service: Service,
    port: ServicePort,
    sent: int,
) -> Finding:
    return Finding(
        template.at(container),
        f"NetworkPolicy {policy.name} allows port {port.port}, which is that of Service {service.name}. "
        f"Policies apply to the ports of pods, and the Service sends to port {sent}, which none of them "
        "allows.",
        f"Allow port {sent} instead.",
    )


RULE = rule(__name__, check)
