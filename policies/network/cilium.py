"""CiliumNetworkPolicies, and the pods that they admit to those of a Service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from policies.core.facts import WholeObjects
from policies.core.network_policies import TUNNELS, is_added
from policies.kube.group_kinds import NETWORK_POLICY, GroupKind
from policies.kube.json import Json, mapping, maps, text
from policies.kube.objects.services import Service

_POLICY: Final = GroupKind("cilium.io", "CiliumNetworkPolicy")
_OF_ALL: Final = GroupKind("cilium.io", "CiliumClusterwideNetworkPolicy")
_NAMESPACE: Final = "io.kubernetes.pod.namespace"
_READ: Final = frozenset({"fromEndpoints", "toPorts"})


class Client(Struct, frozen=True):
    """The pods that ask."""

    namespace: str
    labels: Mapping[str, str]
    complete: bool
    """Whether these are all of their labels but those that controllers add."""


def refusing(
    service: Service, namespace: str, port: int, client: Client, cluster: WholeObjects
) -> str | None:
    """The name of a policy that selects the pods of a Service and admits others to a port, if none that may
    select them admits the client."""
    if any(True for _ in cluster.every(_OF_ALL, None)) or any(
        True for _ in cluster.every(NETWORK_POLICY, namespace)
    ):
        return None
    admitting, denies = None, False
    for policy in cluster.every(_POLICY, namespace):
        for spec in (mapping(policy, "spec"), *maps(policy, "specs")):
            wanted, expressions = _labels(spec.get("endpointSelector"))
            labels = service.spec.selector
            if any(labels.get(key, value) != value for key, value in wanted.items()):
                continue
            rules = maps(spec, "ingress")
            if any(_may_admit(each, namespace, port, client) for each in rules):
                return None
            if not expressions and wanted.items() <= labels.items():
                denies = denies or (
                    bool(rules) and mapping(spec, "enableDefaultDeny").get("ingress", True) is True
                )
                if any(rules) and wanted:
                    admitting = admitting or text(policy, "metadata", "name")
    return admitting if denies else None


def _may_admit(rule: Json, namespace: str, port: int, client: Client) -> bool:
    if not rule:
        return False  # it selects nobody: https://docs.cilium.io/en/stable/security/policy/language/
    if not rule.keys() <= _READ:
        return True
    ports = [each for entry in maps(rule, "toPorts") for each in maps(entry, "ports")]
    if ports and not any(_may_include(each, port) for each in ports):
        return False
    peers = rule.get("fromEndpoints")
    if not isinstance(peers, list):
        return True
    return any(_may_be(each, namespace, client) for each in peers)


def _may_include(given: Json, port: int) -> bool:
    first, last = text(given, "port"), given.get("endPort")
    if not first.isdecimal() or int(first) == 0:
        return True  # a name, or all
    return any(int(first) <= each <= (last if type(last) is int else int(first)) for each in (port, *TUNNELS))


def _may_be(selector: object, namespace: str, client: Client) -> bool:
    wanted, expressions = _labels(selector)
    if wanted.pop(_NAMESPACE, "" if expressions else namespace) not in ("", client.namespace):
        return False
    labels = client.labels
    return all(
        labels[key] == value if key in labels else not client.complete or is_added(key)
        for key, value in wanted.items()
    )


def _labels(selector: object) -> tuple[dict[str, str], bool]:
    """The labels of a selector without their source, and whether it has others, such as those of a
    namespace or several values."""
    if not isinstance(selector, dict):
        return {}, False
    found: dict[str, str] = {}
    expressions = False
    wanted = list(mapping(selector, "matchLabels").items())
    for each in maps(selector, "matchExpressions"):
        values = each.get("values")
        if each.get("operator") == "In" and isinstance(values, list) and len(values) == 1:
            wanted.append((text(each, "key"), values[0]))
        else:
            expressions = True
    for given, value in wanted:
        key = given.removeprefix("k8s:").removeprefix("any:")
        if ":" in key or key.startswith("io.c") or key.startswith("reserved"):
            expressions = True
        else:
            found[key] = str(value)
    return found, expressions
