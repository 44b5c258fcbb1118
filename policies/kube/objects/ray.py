"""Ray clusters, and the kinds that make them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from policies.kube.objects.metadata import EMPTY, Object, Part, Present
from policies.kube.objects.pods import PodTemplateSpec

FT_ENABLED: Final = "ray.io/ft-enabled"
"""The annotation that enables fault tolerance of the GCS before KubeRay 1.3."""


class ScaleStrategy(Part):
    workers_to_delete: tuple[str, ...] = ()


class WorkerGroupSpec(Part):
    group_name: str = ""
    ray_start_params: Mapping[str, str] = EMPTY
    resources: Mapping[str, str] = EMPTY
    replicas: int | None = None
    min_replicas: int = 0
    max_replicas: int | None = None
    num_of_hosts: int = 1
    suspend: bool = False
    idle_timeout_seconds: int | None = None
    scale_strategy: ScaleStrategy = ScaleStrategy()

    @property
    def pods(self) -> int:
        """The pods that KubeRay creates without Ray's autoscaler."""
        return 0 if self.suspend else max(self.min_replicas, self.replicas or 0) * self.num_of_hosts


class HeadGroupSpec(Part):
    ray_start_params: Mapping[str, str] = EMPTY
    resources: Mapping[str, str] = EMPTY
    template: PodTemplateSpec = PodTemplateSpec()


class AutoscalerOptions(Part):
    idle_timeout_seconds: int | None = None


class RayClusterSpec(Part):
    ray_version: str = ""
    head_group_spec: HeadGroupSpec = HeadGroupSpec()
    worker_group_specs: tuple[WorkerGroupSpec, ...] = ()
    suspend: bool = False
    enable_in_tree_autoscaling: bool = False
    autoscaler_options: AutoscalerOptions = AutoscalerOptions()
    gcs_fault_tolerance_options: Present | None = None


class RayObject(Object):
    """An object of a kind with a Ray cluster."""

    @property
    def cluster(self) -> RayClusterSpec:
        raise NotImplementedError

    @property
    def is_fault_tolerant(self) -> bool:
        """Whether KubeRay takes the GCS for fault tolerant (`IsGCSFaultToleranceEnabled`)."""
        annotated = self.metadata.annotations.get(FT_ENABLED, "").lower() == "true"
        return annotated or self.cluster.gcs_fault_tolerance_options is not None

    @property
    def keeps_gcs(self) -> bool:
        """Whether a new head has the state of the GCS: then the workers stay."""
        if self.is_fault_tolerant:
            return True
        head = self.cluster.head_group_spec.template
        return head.metadata.annotations.get(FT_ENABLED) == "true" or any(
            variable.name == "RAY_REDIS_ADDRESS"
            for container in head.spec.containers
            for variable in container.env
        )


class RayCluster(RayObject):
    spec: RayClusterSpec = RayClusterSpec()

    @property
    def cluster(self) -> RayClusterSpec:
        return self.spec


class UpgradeStrategy(Part):
    type: str = ""


class RayServiceSpec(Part):
    serve_config_v2: str = ""
    """The applications of Serve, as YAML."""
    upgrade_strategy: UpgradeStrategy = UpgradeStrategy()
    ray_cluster_config: RayClusterSpec = RayClusterSpec()


class RayService(RayObject):
    spec: RayServiceSpec = RayServiceSpec()

    @property
    def cluster(self) -> RayClusterSpec:
        return self.spec.ray_cluster_config


class RayJobSpec(Part):
    ray_cluster_spec: RayClusterSpec = RayClusterSpec()


class RayJob(RayObject):
    spec: RayJobSpec = RayJobSpec()

    @property
    def cluster(self) -> RayClusterSpec:
        return self.spec.ray_cluster_spec
