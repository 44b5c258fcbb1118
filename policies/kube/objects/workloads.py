"""Workloads that keep a number of pods running."""

from __future__ import annotations

from collections.abc import Mapping

from policies.kube.objects.metadata import (
    EMPTY,
    IntOrString,
    LabelSelector,
    Object,
    ObjectReference,
    Part,
    Present,
)
from policies.kube.objects.pods import PodTemplateSpec
from policies.kube.objects.storage import PersistentVolumeClaim


class RollingUpdateSteps(Part):
    """The `rollingUpdate` of a Deployment, StatefulSet or DaemonSet, and that of a LeaderWorkerSet."""

    max_surge: IntOrString | None = None
    max_unavailable: IntOrString | None = None
    partition: int = 0


class UpdateStrategy(Part):
    """The `strategy` of a Deployment, and the `updateStrategy` of others."""

    type: str = ""
    rolling_update: RollingUpdateSteps = RollingUpdateSteps()


class WorkloadStatus(Part):
    observed_generation: int | None = None
    replicas: int = 0
    ready_replicas: int = 0


NO_STATUS = WorkloadStatus()


class PodControllerSpec(Part):
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()


class PodController(Object):
    """A workload that owns the pods which its selector matches."""

    spec: PodControllerSpec = PodControllerSpec()

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether it selects pods with these labels."""
        return self.spec.selector is not None and self.spec.selector.matches(labels)


class ReplicatedSpec(PodControllerSpec):
    """The fields that every workload with `replicas` and one template has."""

    replicas: int | None = None


class Replicated(PodController):
    """A Deployment, StatefulSet, ReplicaSet or Rollout, as far as they are alike."""

    spec: ReplicatedSpec = ReplicatedSpec()
    status: WorkloadStatus = NO_STATUS


class ProgressingSpec(ReplicatedSpec):
    paused: bool = False
    progress_deadline_seconds: int | None = None
    progress_deadline_abort: bool = False
    """Only a Rollout has it."""


class Progressing(Replicated):
    """A Deployment or a Rollout, as far as they are alike."""

    spec: ProgressingSpec = ProgressingSpec()


class DeploymentSpec(ProgressingSpec):
    strategy: UpdateStrategy = UpdateStrategy()


class Deployment(Progressing):
    spec: DeploymentSpec = DeploymentSpec()


class PodTemplateMetadata(Part):
    """Labels that a Rollout gives pods of one revision."""

    labels: Mapping[str, str] = EMPTY


class CanaryStep(Part):
    experiment: Present | None = None
    """Its pods may have labels of their own."""


class CanaryStrategy(RollingUpdateSteps):
    traffic_routing: Present | None = None
    dynamic_stable_scale: bool = False
    canary_metadata: PodTemplateMetadata = PodTemplateMetadata()
    stable_metadata: PodTemplateMetadata = PodTemplateMetadata()
    steps: tuple[CanaryStep, ...] = ()


class BlueGreenStrategy(Part):
    preview_metadata: PodTemplateMetadata = PodTemplateMetadata()
    active_metadata: PodTemplateMetadata = PodTemplateMetadata()


class RolloutStrategy(Part):
    canary: CanaryStrategy | None = None
    blue_green: BlueGreenStrategy | None = None

    @property
    def relabels(self) -> bool:
        """Whether pods may have other labels than those of the template."""
        canary, blue_green = self.canary or CanaryStrategy(), self.blue_green or BlueGreenStrategy()
        of_canary = (canary.canary_metadata, canary.stable_metadata)
        given = (*of_canary, blue_green.preview_metadata, blue_green.active_metadata)
        return any(each.labels for each in given) or any(each.experiment is not None for each in canary.steps)


class RolloutSpec(ProgressingSpec):
    strategy: RolloutStrategy = RolloutStrategy()
    workload_ref: ObjectReference | None = None


class Rollout(Progressing):
    spec: RolloutSpec = RolloutSpec()


class Ordinals(Part):
    start: int = 0


class StatefulSetSpec(ReplicatedSpec):
    service_name: str = ""
    pod_management_policy: str = ""
    update_strategy: UpdateStrategy = UpdateStrategy()
    ordinals: Ordinals = Ordinals()
    volume_claim_templates: tuple[PersistentVolumeClaim, ...] = ()


class StatefulSet(Replicated):
    spec: StatefulSetSpec = StatefulSetSpec()


class ReplicaSet(Replicated):
    pass


class DaemonSetSpec(PodControllerSpec):
    update_strategy: UpdateStrategy = UpdateStrategy()


class DaemonSet(PodController):
    spec: DaemonSetSpec = DaemonSetSpec()


class GroupRolloutStrategy(Part):
    type: str = ""
    rolling_update_configuration: RollingUpdateSteps = RollingUpdateSteps()


class LeaderWorkerTemplate(Part):
    size: int = 1
    restart_policy: str = ""
    leader_template: PodTemplateSpec | None = None
    worker_template: PodTemplateSpec = PodTemplateSpec()


class LeaderWorkerSetSpec(Part):
    replicas: int | None = None
    startup_policy: str = ""
    leader_worker_template: LeaderWorkerTemplate = LeaderWorkerTemplate()
    rollout_strategy: GroupRolloutStrategy = GroupRolloutStrategy()


class LeaderWorkerSet(Object):
    spec: LeaderWorkerSetSpec = LeaderWorkerSetSpec()
