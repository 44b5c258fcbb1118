"""The settings and facts for one object."""

from __future__ import annotations

from dataclasses import dataclass

from policies.core.facts import Cluster, Facts
from policies.core.pod_view import PodViews
from policies.kube.json import Json
from webhook.admission.configuration import Config, Effective


@dataclass(frozen=True, slots=True)
class Context:
    """The configuration, the settings in force for an object, and the facts for mutators and rules."""

    config: Config
    effective: Effective
    facts: Facts

    @classmethod
    def of(
        cls, obj: Json, namespace: str, config: Config, cluster: Cluster, views: PodViews | None = None
    ) -> Context:
        """`views`: the pods of the same review."""
        # Only overrides select by labels.
        labels = Facts(namespace, cluster).namespace_labels() if config.webhook.overrides else None
        effective = config.effective(obj, namespace, labels)
        return cls(config, effective, Facts(namespace, cluster, effective.settings, views or PodViews()))

    def of_pod(self, pod: Json) -> Context:
        """The context of a pod of the object: overrides may select the pod by its own labels."""
        labels = self.facts.namespace_labels() if self.config.webhook.overrides else None
        effective = self.config.effective(pod, self.namespace, labels)
        if effective is self.effective:
            return self
        facts = Facts(self.namespace, self.facts.cluster, effective.settings, self.facts.views)
        return Context(self.config, effective, facts)

    @property
    def namespace(self) -> str:
        return self.facts.namespace
