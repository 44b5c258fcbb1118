"""One review: a request on its way through the engine, with the policy and the cluster that decide it.

Overrides may select the pods of a workload by their own labels, so each pod has its own `Context`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from msgspec import Struct

from policies.containers.commands import ReviewBudget
from policies.core.facts import Cluster, Facts, WholeObjects
from policies.core.pod_view import PodView, PodViews
from policies.core.target import PodTemplate
from policies.kube.cache import lazy
from policies.kube.group_kinds import GroupKind, kind_of
from policies.kube.json import Json, text
from webhook.admission.bounds import Bounds, allowance, bounded
from webhook.admission.configuration import Config, Effective
from webhook.admission.controllers import owner_behind
from webhook.admission.envelope import Request

View = Callable[[Json], PodView]


class Context(Struct, frozen=True):
    """The configuration, the settings in force for an object, and the facts for mutators and rules."""

    config: Config
    effective: Effective
    facts: Facts

    @classmethod
    def of(
        cls, obj: Json, namespace: str, config: Config, cluster: Cluster, view: View | None = None
    ) -> Context:
        """`view`: returns the views of the pods of the same review."""
        # Only overrides select by labels.
        labels = Facts(namespace, cluster).namespace_labels() if config.webhook.overrides else None
        effective = config.effective(obj, namespace, labels)
        return cls(config, effective, Facts(namespace, cluster, effective.settings, view or PodViews().of))

    def of_pod(self, pod: Json) -> Context:
        """The context of a pod of the object: overrides may select the pod by its own labels."""
        found = Context.of(pod, self.namespace, self.config, self.facts.cluster, self.facts.view)
        return self if found.effective is self.effective else found

    @property
    def namespace(self) -> str:
        return self.facts.namespace


@dataclass(frozen=True)
class Review:
    """A request, and what follows from it step by step. Each value is computed when a step reads it."""

    request: Request
    config: Config
    cluster: Cluster

    def of(self, obj: Json) -> Review:
        """The review of the same request with another object."""
        return replace(self, request=replace(self.request, object=obj))

    @lazy
    def object(self) -> Json:
        """The object of the request; empty on DELETE."""
        return self.request.object or {}

    @lazy
    def kind(self) -> GroupKind:
        return kind_of(self.object)

    @lazy
    def owned(self) -> bool:
        """Whether a controller created the object, so nobody reads the warnings."""
        return owner_behind(self.request, self.config.webhook.controllers) is not None

    @lazy
    def lists_changes(self) -> bool:
        """Whether the warnings list the additions: the policy says so, and somebody reads them."""
        return self.config.webhook.changes.warnings and not self.owned

    @lazy
    def budget(self) -> ReviewBudget:
        """The budget of the review, for the object and for the old one."""
        return allowance()

    @lazy
    def bounds(self) -> Bounds:
        """The parts of the object that are read."""
        find = self.cluster.named if isinstance(self.cluster, WholeObjects) else None
        return bounded(self.object, self.config.workloads, self.budget, find, self.request.namespace)

    @lazy
    def context(self) -> Context:
        """The settings in force for the object, and the facts."""
        views = PodViews(template.view for template in self.bounds.templates)
        return Context.of(self.object, self.request.namespace, self.config, self.cluster, views.of)


def of_running(pod: Json, config: Config, cluster: Cluster) -> tuple[PodTemplate, Facts] | None:
    """A pod of the cluster and the facts about it, on the budget of one review; None if it exceeds that, or
    has a value of a wrong type."""
    pod = {"apiVersion": "v1", "kind": "Pod", **pod}
    bounds = bounded(pod, {}, allowance())
    if bounds.left_out:
        return None
    [template] = bounds.templates
    views = PodViews([template.view])
    return template, Context.of(pod, text(pod, "metadata", "namespace"), config, cluster, views.of).facts
