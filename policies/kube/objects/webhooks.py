"""Configurations of admission webhooks, and policies that the API server evaluates itself."""

from __future__ import annotations

from policies.kube.objects.metadata import LabelSelector, Object, Part, Present


class ServiceReference(Part):
    namespace: str = ""
    name: str = ""
    port: int = 443


class WebhookClientConfig(Part):
    service: ServiceReference | None = None
    url: str = ""
    ca_bundle: str = ""


class RuleWithOperations(Part):
    operations: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    scope: str = "*"


class NamedRule(RuleWithOperations):
    """A rule of an AdmissionPolicy."""

    resource_names: tuple[str, ...] = ()


class Webhook(Part):
    """One webhook of a configuration, mutating or validating."""

    name: str = ""
    client_config: WebhookClientConfig = WebhookClientConfig()
    rules: tuple[RuleWithOperations, ...] = ()
    failure_policy: str = ""
    namespace_selector: LabelSelector = LabelSelector()
    object_selector: LabelSelector = LabelSelector()
    match_conditions: tuple[Present, ...] = ()
    timeout_seconds: int | None = None

    @property
    def timeout(self) -> int:
        """`timeoutSeconds`, with the default of v1."""
        return self.timeout_seconds or 10


class WebhookConfiguration(Object):
    """A MutatingWebhookConfiguration or ValidatingWebhookConfiguration."""

    webhooks: tuple[Webhook, ...] = ()

    def fails_closed(self, webhook: Webhook) -> bool:
        """Whether requests are refused while the webhook does not answer: the default since v1."""
        default = "Ignore" if self.api_version.endswith("/v1beta1") else "Fail"
        return (webhook.failure_policy or default) == "Fail"


class ParamKind(Part):
    api_version: str = ""
    kind: str = ""


class MatchResources(Part):
    resource_rules: tuple[NamedRule, ...] = ()
    exclude_resource_rules: tuple[NamedRule, ...] = ()
    namespace_selector: LabelSelector = LabelSelector()
    object_selector: LabelSelector = LabelSelector()


class AdmissionPolicySpec(Part):
    failure_policy: str = ""
    param_kind: ParamKind | None = None
    match_constraints: MatchResources = MatchResources()

    @property
    def fails_closed(self) -> bool:
        """Whether requests are denied while the policy has no valid configuration: the default."""
        return (self.failure_policy or "Fail") == "Fail"


class AdmissionPolicy(Object):
    """A MutatingAdmissionPolicy or ValidatingAdmissionPolicy."""

    spec: AdmissionPolicySpec = AdmissionPolicySpec()
