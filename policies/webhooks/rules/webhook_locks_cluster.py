"""webhook-locks-cluster: webhooks and policies that refuse or delay requests that a cluster needs to live,
and webhooks whose certificate nobody trusts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from policies.core.contracts import Certainty, Facts, Finding, Findings, Target, rule
from policies.core.data import entries
from policies.core.facts import WholeObjects
from policies.core.settings import Field, Model
from policies.core.workloads import is_builtin
from policies.kube.group_kinds import (
    CLUSTER_ROLE,
    DAEMON_SET,
    MUTATING_POLICY,
    MUTATING_WEBHOOKS,
    VALIDATING_POLICY,
    VALIDATING_WEBHOOKS,
    GroupKind,
    kind_of,
)
from policies.kube.images import image_matches
from policies.kube.json import maps, strings, text
from policies.kube.metadata import annotations_of
from policies.kube.objects.rbac import ClusterRole
from policies.kube.objects.webhooks import AdmissionPolicy, ServiceReference, Webhook, WebhookConfiguration
from policies.webhooks.requests import (
    covers_any_object,
    covers_namespace,
    covers_own_pods,
    covers_resource,
    hiding_policy,
)

_OWN: Final = "own"
_CERTIFICATE: Final = GroupKind("cert-manager.io", "Certificate")
_INJECTORS: Final = ("inject-", "cabundle")
"""Parts of annotations with which a controller writes the authority."""
_PLACEHOLDER: Final = ServiceReference(namespace="system", name="webhook-service")
"""The Service in the manifests that Kubebuilder generates, before kustomize sets its name."""


class CriticalRequest(Model):
    """An entry of the table critical.yaml."""

    group: str = Field(description="the API group of the resource")
    resource: str = Field(description="the plural, or a subresource such as nodes/status")
    operations: tuple[str, ...] = Field(description="the operations that recovery needs")
    namespace: str = Field(
        "", description="its namespace; `own`: that of the webhook's Service; empty: it has none"
    )
    images: tuple[str, ...] = Field(
        (), description="instead of a namespace: that of each DaemonSet with one of these images"
    )
    what: str = Field(description="the objects in words")
    loss: str = Field(description="what happens without it, as half a sentence")
    patience: int | None = Field(None, description="seconds after which the client gives up")
    source: str = Field(description="where this is from")


_table = entries(CriticalRequest, "policies.webhooks", "critical.yaml")


def check(target: Target, facts: Facts) -> Findings:
    if target.kind in (MUTATING_POLICY, VALIDATING_POLICY):
        yield from _of_policy(target.read(AdmissionPolicy), facts)
        return
    configuration = target.read(WebhookConfiguration)
    for index, webhook in enumerate(configuration.webhooks):
        yield from _hidden(webhook, index, configuration, facts)
        yield from _untrusted(webhook, index, target, configuration, facts)
        received = list(_received(webhook, facts))
        if not received:
            continue
        name = webhook.name or index
        if configuration.fails_closed(webhook):
            first, *others = received
            more = f" It also receives {_joined([each.what for each in others[:3]])}." if others else ""
            yield Finding(
                f"webhooks[{index}].failurePolicy",
                f"Webhook {name} fails closed on {first.what}. While it doesn't answer, {first.loss}.{more}",
                _hint(webhook, received),
            )
        elif late := [each for each in received if each.patience and each.patience <= webhook.timeout]:
            first = min(late, key=lambda each: each.patience or 0)
            yield Finding(
                f"webhooks[{index}].timeoutSeconds",
                f"Webhook {name} delays {first.what} by {webhook.timeout} s while it doesn't answer, but "
                f"their clients give up after {first.patience} s: {first.loss}, despite failurePolicy "
                "Ignore.",
                "List only the resources that it needs in rules, or set timeoutSeconds to 3 or less.",
            )


def _of_policy(policy: AdmissionPolicy, facts: Facts) -> Findings:
    """A finding about a policy whose parameters are of a kind that the API server may not know yet.

    Without that kind the API server denies each request that `matchConstraints` match, before it reads
    bindings and `matchConditions`: k8s.io/apiserver v0.37.0,
    pkg/admission/plugin/policy/validating/dispatcher.go.
    """
    parameters, constraints = policy.spec.param_kind, policy.spec.match_constraints
    if parameters is None or not policy.spec.fails_closed or constraints.exclude_resource_rules:
        return
    kind = kind_of({"apiVersion": parameters.api_version, "kind": parameters.kind})
    if is_builtin(kind):
        return
    rules = tuple(each for each in constraints.resource_rules if not each.resource_names)
    selectors = constraints.namespace_selector, constraints.object_selector
    matched = Webhook(rules=rules, namespace_selector=selectors[0], object_selector=selectors[1])
    first = next((each for each in _received(matched, facts) if each.patience), None)
    if first is not None:
        yield Finding(
            "spec.failurePolicy",
            f"The policy fails closed on {first.what}. While the API server does not know the kind of its "
            f"parameters, {kind}, as after a restart, it denies them whatever bindings and "
            f"matchConditions select: {first.loss}.",
            "List only the resources that it needs in matchConstraints.resourceRules, or set failurePolicy "
            "to Ignore.",
        )


def _hidden(webhook: Webhook, index: int, configuration: WebhookConfiguration, facts: Facts) -> Findings:
    """A finding about a webhook whose server no call of the API server reaches."""
    service = webhook.client_config.service
    if service is None or service == _PLACEHOLDER or not configuration.fails_closed(webhook):
        return
    policy = hiding_policy(service, facts)
    if policy is not None:
        why = (
            f"NetworkPolicy {policy.name} admits only pods to Service {service.name}, and the API server is "
            "not a pod. Its"
            if policy.closed_port is None
            else f"NetworkPolicy {policy.name} selects the pods of Service {service.name}, and no policy "
            f"admits anything to their port {policy.closed_port}. The API server's"
        )
        yield Finding(
            f"webhooks[{index}].clientConfig.service",
            f"{why} calls time out, and the webhook fails closed.",
            "Admit the port of the webhook without `from`: the webhook's TLS protects it.",
            Certainty.UNDECIDED,
        )


def _untrusted(
    webhook: Webhook, index: int, target: Target, configuration: WebhookConfiguration, facts: Facts
) -> Findings:
    """A finding about a webhook whose certificate is cert-manager's, and that is not told its authority. In
    kustomizations, another version of the configuration may have the annotation."""
    service, whole = webhook.client_config.service, facts.whole
    if service is None or service == _PLACEHOLDER or webhook.client_config.ca_bundle or whole is None:
        return
    versions = (target.obj, *whole.versions(target.kind, "", target.name))
    if not configuration.fails_closed(webhook) or any(
        any(part in key for part in _INJECTORS) for each in versions for key in annotations_of(each)
    ):
        return
    own = whole.cache.once_for("certificates", _certificates, whole).get(
        (service.namespace, f"{service.name}.{service.namespace}.svc")
    )
    if own is not None and not whole.cache.once_for(target.kind, _has_own_injector, target.kind, whole):
        yield Finding(
            f"webhooks[{index}].clientConfig",
            f"Certificate {own} of cert-manager is for Service {service.name}, and this configuration "
            "has neither a caBundle nor the annotation with which cert-manager writes one. The API "
            "server doesn't trust the webhook, which fails closed.",
            f"Add the annotation cert-manager.io/inject-ca-from: {service.namespace}/{own}.",
            Certainty.LIKELY,
        )


def _certificates(whole: WholeObjects) -> dict[tuple[str, str], str]:
    """The names of cert-manager's certificates by their namespaces and hosts."""
    return {
        (text(each, "metadata", "namespace") or "default", host): text(each, "metadata", "name")
        for each in whole.every(_CERTIFICATE, None)
        for host in strings(each, "spec", "dnsNames")
    }


def _has_own_injector(kind: GroupKind, whole: WholeObjects) -> bool:
    """Whether a program of the set may write the authority."""
    return any(role.may_change(kind) for role in whole.typed(CLUSTER_ROLE, None, ClusterRole))


def _received(webhook: Webhook, facts: Facts) -> Iterator[CriticalRequest]:
    """The critical requests that the webhook certainly receives."""
    service = webhook.client_config.service
    for each in (placed for entry in _table() for placed in _placed(entry, facts)):
        namespaced = bool(each.namespace)
        if not covers_resource(webhook, each.group, each.resource, each.operations, namespaced=namespaced):
            continue
        if each.namespace == _OWN:
            if service is None or service == _PLACEHOLDER or not service.namespace:
                continue
            own = each.resource != "pods" or covers_own_pods(webhook, service, facts)
            if own and covers_namespace(webhook, service.namespace, facts):
                yield each
        elif covers_any_object(webhook) and (
            not namespaced or covers_namespace(webhook, each.namespace, facts)
        ):
            yield each


def _placed(request: CriticalRequest, facts: Facts) -> Iterator[CriticalRequest]:
    """The request, or one for each other namespace in which a DaemonSet has one of its images."""
    if not request.images:
        yield request
        return
    listed = {each.namespace for each in _table()}
    for obj in () if facts.whole is None else facts.whole.every(DAEMON_SET, None):
        namespace = text(obj, "metadata", "namespace")
        containers = maps(obj, "spec", "template", "spec", "containers")
        matches = any(image_matches(text(each, "image"), request.images) for each in containers)
        if namespace and matches and namespace not in listed:
            listed.add(namespace)
            yield replace(request, namespace=namespace, what=f"{request.what} in {namespace}")


def _hint(webhook: Webhook, received: list[CriticalRequest]) -> str:
    if any("*" in rule.resources or "*/*" in rule.resources for rule in webhook.rules):
        return (
            "List only the resources that it needs in rules, and use namespaceSelector to exclude "
            "kube-system, kube-node-lease and its own namespace (kubernetes.io/metadata.name NotIn)."
        )
    service = webhook.client_config.service
    own = service.namespace if service is not None else ""
    places = dict.fromkeys(own if each.namespace == _OWN else each.namespace for each in received)
    named = _joined([place for place in places if place])
    if not named:
        return "Set failurePolicy to Ignore, or remove these resources from rules."
    return (
        f"Use namespaceSelector to exclude namespace {named} (kubernetes.io/metadata.name NotIn), or set "
        "failurePolicy to Ignore."
    )


def _joined(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1] if words else "")))


RULE = rule(__name__, check, (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, MUTATING_POLICY, VALIDATING_POLICY))
