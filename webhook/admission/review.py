"""One review: a request on its way through the engine, with the policy and the cluster that decide it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from policies.containers.commands import ReviewBudget
from policies.core.facts import Cluster, whole_objects
from policies.core.pod_view import PodView, PodViews
from policies.core.target import PodTemplate
from policies.kube.group_kinds import GroupKind, kind_of
from policies.kube.json import Json
from webhook.admission.bounds import Bounds, allowance, bounded
from webhook.admission.configuration import Config
from webhook.admission.context import Context
from webhook.admission.decision import Decision
from webhook.admission.envelope import Request
from webhook.admission.replacements import owner_behind

Fold: TypeAlias = Callable[[PodTemplate, Context], tuple[Decision, PodView]]
"""Mutates the pod of a template, as `webhook.admission.projection.fold_template` does."""


@dataclass(frozen=True)
class Review:
    """A request, and what follows from it step by step. Each value is computed when a step reads it."""

    request: Request
    config: Config
    cluster: Cluster
    fold: Fold | None = None
    """Remembers the pods of templates; the memo sets it."""

    def of(self, obj: Json) -> Review:
        """The review of the same request with another object."""
        return replace(self, request=replace(self.request, object=obj))

    @cached_property
    def object(self) -> Json:
        """The object of the request; empty on DELETE."""
        return self.request.object or {}

    @cached_property
    def kind(self) -> GroupKind:
        return kind_of(self.object)

    @cached_property
    def owned(self) -> bool:
        """Whether a controller created the object, so nobody reads the warnings."""
        return owner_behind(self.request, self.config.webhook.controllers) is not None

    @cached_property
    def budget(self) -> ReviewBudget:
        """The budget of the review, for the object and for the old one."""
        return allowance()

    @cached_property
    def bounds(self) -> Bounds:
        """The parts of the object that are read."""
        whole = whole_objects(self.cluster)
        find = None if whole is None else whole.named
        return bounded(self.object, self.config.workloads, self.budget, find, self.request.namespace)

    @cached_property
    def context(self) -> Context:
        """The settings in force for the object, and the facts. Read it after `bounds`."""
        views = PodViews(template.view for template in self.bounds.templates)
        return Context.of(self.object, self.request.namespace, self.config, self.cluster, views)
