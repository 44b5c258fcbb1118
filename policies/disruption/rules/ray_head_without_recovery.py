"""ray-head-without-recovery: Ray clusters on accelerators that lose all workers with their head."""

from __future__ import annotations

from typing import Final

from policies.accelerators.requests import is_large
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import RAY_CLUSTER, RAY_SERVICE
from policies.kube.objects.ray import RayObject

_SEVERAL: Final = 2
_OF_A_SERVICE: Final = (
    "gcsFaultToleranceOptions",
    "the service is down until they have loaded everything again",
    'Set gcsFaultToleranceOptions with a Redis, or keep tasks off the head with num-cpus: "0" in its '
    "rayStartParams.",
)
_OF_JOBS: Final = (
    "headGroupSpec.rayStartParams",
    "every running job is lost",
    'Keep tasks off the head with num-cpus: "0", and give it memory. Ray recommends '
    "gcsFaultToleranceOptions only for Ray Serve.",
)
"""The field, what is lost, and the fix: https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/kuberay-gcs-ft.html"""


def check(target: Target, facts: Facts) -> Findings:
    obj = target.read(RayObject)
    if target.has_controller or obj.keeps_gcs or obj.cluster.suspend:
        return
    if obj.cluster.head_group_spec.ray_start_params.get("num-cpus") == "0":
        return  # no task takes the head's memory, which is why most heads end
    if sum(group.pods for group in obj.cluster.worker_group_specs) < _SEVERAL:
        return
    workers = [each for each in target.templates if ".workerGroupSpecs" in each.path]
    if not any(is_large(each.view, facts) for each in workers):
        return
    head = next((each for each in target.templates if ".headGroupSpec" in each.path), None)
    if head is not None:
        at = head.path.partition(".headGroupSpec")[0]
        field, loses, fix = _OF_A_SERVICE if target.kind == RAY_SERVICE else _OF_JOBS
        yield Finding(
            f"{at}.{field}",
            "The state of the cluster is in the memory of its head. When the head restarts (out of memory, "
            f"eviction, a failed node), the new head ends all workers, and {loses}.",
            fix,
        )


RULE = rule(__name__, check, (RAY_CLUSTER, RAY_SERVICE))
