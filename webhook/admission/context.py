"""What is in force, and what may be known, for one object: made once, and handed down."""

from __future__ import annotations

from dataclasses import dataclass, replace

from policies.core.facts import Cluster, Facts
from policies.kube.json import Json
from webhook.admission.configuration import Config, Effective


@dataclass(frozen=True, slots=True)
class Context:
    """The configuration, what of it is in force for an object, and the facts that mutators and rules see."""

    config: Config
    effective: Effective
    facts: Facts
    """With the settings in force."""

    @classmethod
    def of(cls, obj: Json, namespace: str, config: Config, cluster: Cluster) -> Context:
        facts = Facts(namespace, cluster)
        effective = config.effective(obj, namespace, facts.namespace_labels())
        return cls(config, effective, replace(facts, settings=effective.settings))

    def of_pod(self, pod: Json) -> Context:
        """The context of a pod of the object: overrides may select it by labels of its own."""
        return Context.of(pod, self.namespace, self.config, self.facts.cluster)

    @property
    def namespace(self) -> str:
        return self.facts.namespace
