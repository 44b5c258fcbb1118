"""Ray clusters, without their pod templates."""

from __future__ import annotations

from policies.kube.objects.base import Part
from policies.kube.objects.metadata import Object


class ScaleStrategy(Part):
    workers_to_delete: tuple[str, ...] = ()


class WorkerGroupSpec(Part):
    group_name: str = ""
    replicas: int | None = None
    min_replicas: int = 0
    max_replicas: int | None = None
    num_of_hosts: int = 1
    suspend: bool = False
    scale_strategy: ScaleStrategy = ScaleStrategy()


class RayClusterSpec(Part):
    worker_group_specs: tuple[WorkerGroupSpec, ...] = ()
    suspend: bool = False
    enable_in_tree_autoscaling: bool = False


class RayCluster(Object):
    spec: RayClusterSpec = RayClusterSpec()


class RayServiceSpec(Part):
    ray_cluster_config: RayClusterSpec = RayClusterSpec()


class RayService(Object):
    spec: RayServiceSpec = RayServiceSpec()
