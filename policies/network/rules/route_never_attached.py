"""route-never-attached: pods behind a route that no gateway serves, or that may not send to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.core.facts import WholeObjects
from policies.core.services import selecting
from policies.kube.group_kinds import DAEMON_SET, GATEWAY, GRPC_ROUTE, HTTP_ROUTE, INGRESS, SERVING, GroupKind
from policies.kube.json import Json, mapping, maps, strings, text
from policies.network.gateways import OLD_CLASS

_GRANT: Final = GroupKind("gateway.networking.k8s.io", "ReferenceGrant")
_ISTIO_GATEWAY: Final = GroupKind("networking.istio.io", "Gateway")
_VIRTUAL_SERVICE: Final = GroupKind("networking.istio.io", "VirtualService")
_INGRESS_CLASS: Final = GroupKind("networking.k8s.io", "IngressClass")
_DEFAULT_CLASS: Final = "ingressclass.kubernetes.io/is-default-class"
_SERVES_ITS_CLASS: Final = "k8s.io/ingress-nginx"
"""A controller that by default ignores Ingresses without a class:
https://kubernetes.github.io/ingress-nginx/user-guide/k8s-122-migration/"""
_SETTINGS: Final = "nginx.ingress.kubernetes.io/"
_EVERY_CLASS: Final = "--watch-ingress-without-class"
_Found = tuple[str, str, str, str, Certainty]
"""The namespace and name of a Service, what is wrong with a route to it, what to do, and how sure it is."""


def check(target: Target, facts: Facts) -> Findings:
    whole = facts.whole
    if whole is None or not target.templates:
        return
    found = whole.cache.once(_found, whole)
    for service in selecting(target.templates[0].typed.metadata.labels, facts) if found else ():
        for _, _, wrong, hint, certainty in found.get((facts.namespace, service.name), ())[:1]:
            yield Finding(
                target.templates[0].spec_path,
                f"{wrong} No request for Service {service.name} gets to these pods through it.",
                hint,
                certainty,
            )
            return


def _found(whole: WholeObjects) -> dict[tuple[str, str], list[_Found]]:
    found: dict[tuple[str, str], list[_Found]] = {}
    for each in (*_of_routes(whole), *_of_virtual_services(whole), *_of_ingresses(whole)):
        found.setdefault(each[:2], []).append(each)
    return found


def _by_name(kind: GroupKind, whole: WholeObjects) -> dict[str, list[Json]]:
    """All objects of a kind, in any namespace and any version."""
    found: dict[str, list[Json]] = {}
    for each in whole.every(kind, None):
        found.setdefault(text(each, "metadata", "name"), []).append(each)
    return found


def _grants(whole: WholeObjects) -> frozenset[tuple[str, str, str, str]]:
    """The namespace of each ReferenceGrant, the kind and the namespace of routes that it is for, and the name
    of the Service; empty for all of them."""
    return frozenset(
        (text(grant, "metadata", "namespace"), text(each, "kind"), text(each, "namespace"), text(to, "name"))
        for grant in whole.every(_GRANT, None)
        for each in maps(grant, "spec", "from")
        for to in maps(grant, "spec", "to")
        if text(to, "kind") == "Service"
    )


def _of_routes(whole: WholeObjects) -> Iterator[_Found]:
    """Routes whose namespace is written: others may be applied to any."""
    gateways, granted = _by_name(GATEWAY, whole), _grants(whole)
    for kind in (HTTP_ROUTE, GRPC_ROUTE):
        for route in whole.every(kind, None):
            name, own = text(route, "metadata", "name"), text(route, "metadata", "namespace")
            backends = [each for part in maps(route, "spec", "rules") for each in maps(part, "backendRefs")]
            unattached = [_unattached(parent, own, gateways) for parent in maps(route, "spec", "parentRefs")]
            refused = unattached[0] if all(unattached) and unattached else None
            for each in backends if own else ():
                service, there = text(each, "name"), text(each, "namespace") or own
                if text(each, "kind") not in ("", "Service"):
                    continue
                if refused is not None:
                    wrong, hint, certainty = refused
                    yield there, service, f"{kind.kind} {name} of namespace {own} {wrong}", hint, certainty
                elif there != own and granted.isdisjoint(
                    (place, kind.kind, own, name_or_all)
                    for place in (there, "")  # one without its namespace may be applied to any
                    for name_or_all in (service, "")
                ):
                    yield (
                        there,
                        service,
                        f"{kind.kind} {name} of namespace {own} refers to another namespace, in which no "
                        "ReferenceGrant allows that.",
                        f"Create a ReferenceGrant from {kind.kind}s of {own} to Services in {there}.",
                        Certainty.LIKELY,
                    )


def _unattached(
    parent: Json, own: str, gateways: Mapping[str, list[Json]]
) -> tuple[str, str, Certainty] | None:
    """Why a Gateway doesn't take a route, and what to do; None if it may."""
    if text(parent, "kind") not in ("", "Gateway"):
        return None
    name, there = text(parent, "name"), text(parent, "namespace") or own
    named = gateways.get(name, [])
    if not any(text(each, "metadata", "namespace") == there for each in named):
        # The Gateway of another namespace that is written may be of another cluster.
        elsewhere = "" if text(parent, "namespace") else _only_elsewhere(named, own)
        wrong = f"names the Gateway {name} without its namespace {elsewhere}."
        return (
            (wrong, f"Set namespace: {elsewhere} in its parentRefs.", Certainty.LIKELY) if elsewhere else None
        )
    if there == own or any(_takes_routes_of_others(each, text(parent, "sectionName")) for each in named):
        return None
    return (
        f"isn't accepted by Gateway {name}, whose listener takes only routes of its own namespace {there}.",
        "Set allowedRoutes.namespaces.from of the listener to All, or to Selector with the namespaces.",
        Certainty.CERTAIN,
    )


def _takes_routes_of_others(gateway: Json, wanted: str) -> bool:
    """Whether a listener of a Gateway, which may be one of several clusters' or a patch, takes routes of
    another namespace."""
    listeners = [each for each in maps(gateway, "spec", "listeners") if wanted in ("", text(each, "name"))]
    places = (text(each, "allowedRoutes", "namespaces", "from") for each in listeners)
    return not listeners or any(place not in ("", "Same") for place in places)


def _only_elsewhere(named: Sequence[Json], own: str) -> str:
    """The other namespace with the only objects of a name; empty if there is none."""
    found = {text(each, "metadata", "namespace") for each in named}
    return found.pop() if len(found) == 1 and own not in found else ""


def _of_virtual_services(whole: WholeObjects) -> Iterator[_Found]:
    known = _by_name(_ISTIO_GATEWAY, whole)
    for route in whole.every(_VIRTUAL_SERVICE, None):
        name, own = text(route, "metadata", "name"), text(route, "metadata", "namespace")
        gateways = strings(route, "spec", "gateways")
        elsewhere = [
            "" if "/" in each or each == "mesh" else _only_elsewhere(known.get(each, ()), own)
            for each in gateways
        ]
        if not own or not gateways or not all(elsewhere):
            continue
        right = f"{elsewhere[0]}/{gateways[0]}"
        for part in maps(route, "spec", "http"):
            for each in maps(part, "route"):
                service, _, rest = text(each, "destination", "host").partition(".")
                yield (
                    rest.partition(".")[0] or own,
                    service,
                    f"VirtualService {name} of namespace {own} names the Gateway {gateways[0]}, which Istio "
                    f"looks for in that namespace; it is in {elsewhere[0]}.",
                    f"Write {right}.",
                    Certainty.LIKELY,
                )


def _of_ingresses(whole: WholeObjects) -> Iterator[_Found]:
    """Ingresses without a class and with settings for a controller that serves only those of its class."""
    classes = list(whole.every(_INGRESS_CLASS, None))
    if not classes or any(
        text(each, "spec", "controller") != _SERVES_ITS_CLASS
        or text(each, "metadata", "annotations", _DEFAULT_CLASS) == "true"
        for each in classes
    ):
        return
    if any(map(_serves_all, (obj for kind in (*SERVING, DAEMON_SET) for obj in whole.every(kind, None)))):
        return
    for ingress in whole.every(INGRESS, None):
        annotations = mapping(ingress, "metadata", "annotations")
        if text(ingress, "spec", "ingressClassName") or OLD_CLASS in annotations:
            continue
        if not any(key.startswith(_SETTINGS) for key in annotations):
            continue  # another controller may serve it, such as those of k3s and GKE
        known = text(classes[0], "metadata", "name")
        for part in maps(ingress, "spec", "rules"):
            for path in maps(part, "http", "paths"):
                yield (
                    text(ingress, "metadata", "namespace") or "default",
                    text(path, "backend", "service", "name"),
                    f"Ingress {text(ingress, 'metadata', 'name')} has no class, and no IngressClass is the "
                    "default.",
                    f"Set ingressClassName: {known}.",
                    Certainty.LIKELY,
                )


def _serves_all(workload: Json) -> bool:
    """Whether a controller serves Ingresses without a class, as ingress-nginx does on kind."""
    containers = maps(workload, "spec", "template", "spec", "containers")
    return any(argument.startswith(_EVERY_CLASS) for each in containers for argument in strings(each, "args"))


RULE = rule(__name__, check, SERVING)
