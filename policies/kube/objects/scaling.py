"""Autoscalers and disruption budgets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from policies.kube.objects.metadata import (
    EMPTY,
    IntOrString,
    LabelSelector,
    Named,
    Object,
    ObjectReference,
    Part,
    Quantity,
)


class DisruptionBudgetSpec(Part):
    selector: LabelSelector | None = None
    min_available: IntOrString | None = None
    max_unavailable: IntOrString | None = None
    unhealthy_pod_eviction_policy: str = ""


class DisruptionBudgetStatus(Part):
    disruptions_allowed: int = 0


class PodDisruptionBudget(Object):
    spec: DisruptionBudgetSpec = DisruptionBudgetSpec()
    status: DisruptionBudgetStatus = DisruptionBudgetStatus()

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether it selects pods with these labels."""
        return self.spec.selector is not None and self.spec.selector.matches(labels)


class MetricTarget(Part):
    type: str = ""
    average_utilization: int | None = None
    average_value: Quantity | None = None
    value: Quantity | None = None


class ResourceMetric(Part):
    """The `resource` or `containerResource` of a metric."""

    name: str = ""
    container: str = ""
    target: MetricTarget = MetricTarget()


class NamedMetric(Part):
    """The `pods`, `object` or `external` of a metric."""

    metric: Named = Named()
    target: MetricTarget = MetricTarget()
    metric_name: str = ""
    """The form of v2beta1."""
    target_average_value: Quantity | None = None
    """The form of v2beta1."""

    @property
    def name(self) -> str:
        return self.metric.name or self.metric_name

    @property
    def per_pod(self) -> Quantity | None:
        """The value for each pod that is aimed at; None for a value of all of them."""
        return self.target_average_value if self.target.average_value is None else self.target.average_value


class Metric(Part):
    type: str = ""
    resource: ResourceMetric | None = None
    container_resource: ResourceMetric | None = None
    pods: NamedMetric | None = None
    object: NamedMetric | None = None
    external: NamedMetric | None = None


class ScalingRules(Part):
    tolerance: Quantity | None = None


class ScalingBehavior(Part):
    scale_up: ScalingRules = ScalingRules()


class AutoscalerSpec(Part):
    scale_target_ref: ObjectReference = ObjectReference()
    min_replicas: int | None = None
    max_replicas: int | None = None
    metrics: tuple[Metric, ...] = ()
    behavior: ScalingBehavior = ScalingBehavior()
    target_cpu_utilization_percentage: int | None = msgspec.field(
        default=None, name="targetCPUUtilizationPercentage"
    )


class HorizontalPodAutoscaler(Object):
    spec: AutoscalerSpec = AutoscalerSpec()

    @property
    def is_kedas(self) -> bool:
        """Whether KEDA made it from a ScaledObject."""
        owner = self.metadata.controller
        return owner is not None and owner.kind == "ScaledObject"

    @property
    def title(self) -> str:
        """Its kind and name, or those of the object that a person wrote."""
        owner = self.metadata.controller
        if owner is not None and owner.kind in ("ScaledObject", "PodAutoscaler"):
            return f"{owner.kind} {owner.name}"
        return f"HorizontalPodAutoscaler {self.name}"


_CHANGING: Final = (None, "Auto", "Recreate", "Initial", "InPlaceOrRecreate")
"""Modes in which a VerticalPodAutoscaler changes pods, at the latest when they are created."""


class ContainerResourcePolicy(Part):
    mode: str = ""
    controlled_resources: tuple[str, ...] | None = None


class PodResourcePolicy(Part):
    container_policies: tuple[ContainerResourcePolicy, ...] = ()


class PodUpdatePolicy(Part):
    update_mode: str | None = None


class VerticalPodAutoscalerSpec(Part):
    target_ref: ObjectReference = ObjectReference()
    update_policy: PodUpdatePolicy = PodUpdatePolicy()
    resource_policy: PodResourcePolicy = PodResourcePolicy()


class VerticalPodAutoscaler(Object):
    spec: VerticalPodAutoscalerSpec = VerticalPodAutoscalerSpec()

    @property
    def sized(self) -> frozenset[str]:
        """The resources whose requests it changes in some container."""
        if self.spec.update_policy.update_mode not in _CHANGING:
            return frozenset()
        every = ("cpu", "memory")
        policies = self.spec.resource_policy.container_policies
        changing = [each.controlled_resources for each in policies if each.mode != "Off"]
        sized = (every if each is None else each for each in changing)
        return frozenset().union(*sized) if policies else frozenset(every)


class ScaleSpec(Part):
    replicas: int = 0


class Scale(Object):
    """The subresource `scale` of any kind."""

    spec: ScaleSpec = ScaleSpec()


class Trigger(Part):
    type: str = ""
    metric_type: str = ""
    metadata: Mapping[str, str] = EMPTY


class AutoscalerConfig(Part):
    name: str = ""
    behavior: ScalingBehavior = ScalingBehavior()


KEDA_MOST: Final = 100
"""KEDA's default of maxReplicaCount (`defaultHPAMaxReplicas` in apis/keda/v1alpha1/scaledobject_types.go)."""


class ScalingModifiers(Part):
    formula: str = ""


class ScaledObjectAdvanced(Part):
    scaling_modifiers: ScalingModifiers = ScalingModifiers()
    horizontal_pod_autoscaler_config: AutoscalerConfig = AutoscalerConfig()


class ScaledObjectSpec(Part):
    scale_target_ref: ObjectReference = ObjectReference()
    min_replica_count: int | None = None
    idle_replica_count: int | None = None
    max_replica_count: int | None = None
    triggers: tuple[Trigger, ...] = ()
    advanced: ScaledObjectAdvanced = ScaledObjectAdvanced()


class ScaledObject(Object):
    """KEDA's."""

    spec: ScaledObjectSpec = ScaledObjectSpec()


class JobRollout(Part):
    strategy: str = ""


class ScaledJobSpec(Part):
    rollout: JobRollout = JobRollout()
    rollout_strategy: str = ""
    """The deprecated form of `rollout.strategy`, which counts if both are set."""


class ScaledJob(Object):
    """KEDA's."""

    spec: ScaledJobSpec = ScaledJobSpec()
