"""AuthorizationPolicies of Istio, and the accounts that they let use a Service."""

from __future__ import annotations

from typing import Final

import msgspec

from policies.core.facts import WholeObjects
from policies.kube.group_kinds import GATEWAY, NAMESPACE, GroupKind
from policies.kube.json import text
from policies.kube.metadata import labels_of
from policies.kube.objects.metadata import EMPTY, LabelSelector, Object, Part
from policies.kube.objects.reading import readable
from policies.kube.objects.services import Service

_AUTHORIZATION_POLICY: Final = GroupKind("security.istio.io", "AuthorizationPolicy")
_ROOT: Final = "istio"
"""A part of the name of the namespace whose policies without a selector are about all pods of the mesh, which
is istio-system unless an installation sets another one:
https://istio.io/latest/docs/reference/config/security/authorization-policy/"""
_DRY_RUN: Final = "istio.io/dry-run"
"""The annotation of a policy that only logs."""
_WAYPOINT: Final = "istio.io/use-waypoint"
"""The label of a Service or namespace whose requests come from a waypoint, with its account:
https://istio.io/latest/docs/ambient/usage/waypoint/"""


class _TargetRef(Part):
    kind: str = ""
    name: str = ""


class _Source(Part):
    principals: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()


class _Spec(Part):
    action: str = ""
    selector: LabelSelector | None = None
    target_ref: _TargetRef | None = None
    target_refs: tuple[_TargetRef, ...] = ()
    rules: tuple[dict[str, object], ...] = ()


class AuthorizationPolicy(Object):
    spec: _Spec = _Spec()

    @property
    def targets(self) -> tuple[_TargetRef, ...]:
        return self.spec.target_refs + ((self.spec.target_ref,) if self.spec.target_ref else ())

    @property
    def is_allowing(self) -> bool:
        return self.spec.action in ("", "ALLOW") and self.metadata.annotations.get(_DRY_RUN) != "true"

    def certainly_about(self, service: Service) -> bool:
        """Whether it names the Service or the labels that the Service selects."""
        if self.targets:
            return any(each.kind == "Service" and each.name == service.name for each in self.targets)
        selector = self.spec.selector
        wanted = EMPTY if selector is None else selector.match_labels
        return bool(wanted) and wanted.items() <= service.spec.selector.items()

    def may_be_about(self, service: Service) -> bool:
        if self.targets:
            return any(each.kind != "Service" or each.name == service.name for each in self.targets)
        wanted = EMPTY if self.spec.selector is None else self.spec.selector.match_labels
        labels = service.spec.selector
        return all(labels.get(key, value) == value for key, value in wanted.items())

    def may_admit(self, namespace: str, account: str) -> bool:
        """Whether one of its rules may be about requests of an account."""
        return any(_may_admit(each, namespace, account) for each in self.spec.rules)


def refusing(
    service: Service, namespace: str, client_namespace: str, account: str, cluster: WholeObjects
) -> AuthorizationPolicy | None:
    """A policy that names a Service, if none that may do so admits the account of a client."""
    near = cluster.cache.once_for(("authorization", namespace), _allowing, cluster, namespace)
    about = [each for each in near if each.may_be_about(service)]
    if _has_waypoint(service, namespace, about, cluster):
        about = [each for each in about if each.targets]
    if any(each.may_admit(client_namespace, account) for each in about):
        return None
    return next((each for each in about if each.spec.rules and each.certainly_about(service)), None)


def _has_waypoint(
    service: Service, namespace: str, about: list[AuthorizationPolicy], cluster: WholeObjects
) -> bool:
    """Whether a waypoint may be between the clients and the pods of a Service. `istioctl` makes and labels
    one, too."""
    place = cluster.named(NAMESPACE, "", namespace)
    labels = {**({} if place is None else labels_of(place)), **service.metadata.labels}
    return (
        _WAYPOINT in labels
        or any("waypoint" in str(rule) for each in about for rule in each.spec.rules)
        or any(
            "waypoint" in text(each, "spec", "gatewayClassName") for each in cluster.every(GATEWAY, namespace)
        )
    )


def _allowing(cluster: WholeObjects, namespace: str) -> tuple[AuthorizationPolicy, ...]:
    found = (
        readable(obj, AuthorizationPolicy)
        for obj in cluster.every(_AUTHORIZATION_POLICY, None)
        if (place := text(obj, "metadata", "namespace") or "default") == (namespace or "default")
        or _ROOT in place
    )
    return tuple(each for each in found if each is not None and each.is_allowing)


def _may_admit(rule: dict[str, object], namespace: str, account: str) -> bool:
    entries = rule.get("from")
    if not isinstance(entries, list) or not entries:
        return True
    for entry in entries:
        source = entry.get("source") if isinstance(entry, dict) else None
        if not isinstance(source, dict) or not source.keys() <= {"principals", "namespaces"}:
            return True
        try:
            typed = msgspec.convert(source, _Source)
        except msgspec.ValidationError:
            return True
        names = not typed.principals or any(
            _is_principal(each, namespace, account) for each in typed.principals
        )
        if names and (not typed.namespaces or any(_matches(each, namespace) for each in typed.namespaces)):
            return True
    return False


def _is_principal(pattern: str, namespace: str, account: str) -> bool:
    """The domain of the mesh is not known: `cluster.local/ns/ml/sa/train`."""
    domain = "" if pattern.startswith("*") else pattern.partition("/")[0].rstrip("*")
    return _matches(pattern, f"{domain}/ns/{namespace}/sa/{account}")


def _matches(pattern: str, value: str) -> bool:
    """Istio's patterns have one `*`, at the beginning or the end."""
    if pattern.startswith("*"):
        return value.endswith(pattern[1:])
    return value.startswith(pattern[:-1]) if pattern.endswith("*") else value == pattern
