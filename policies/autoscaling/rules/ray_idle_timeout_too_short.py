"""ray-idle-timeout-too-short: Ray autoscalers that remove workers with accelerators within seconds."""

from __future__ import annotations

from typing import Final

from policies.accelerators.requests import is_large
from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import RAY_KINDS
from policies.kube.objects.ray import RayObject
from policies.kube.quantities import whole_number

_DEFAULT: Final = 60
"""Ray's default of `idleTimeoutSeconds`: ray/autoscaler/_private/kuberay/autoscaling_config.py in 2.51."""


def check(target: Target, facts: Facts) -> Findings:
    cluster = target.read(RayObject).cluster
    if not cluster.enable_in_tree_autoscaling:
        return
    common = cluster.autoscaler_options.idle_timeout_seconds
    for template in target.templates:
        before, marker, rest = template.path.partition(".workerGroupSpecs[")
        index = rest.partition("]")[0]
        if not marker or whole_number(index, 4) is None or not is_large(template.view, facts):
            continue
        group = cluster.worker_group_specs[int(index)]
        own = group.idle_timeout_seconds
        seconds = common if own is None else own
        if seconds is None or seconds >= _DEFAULT or group.min_replicas == group.max_replicas:
            continue
        where = "autoscalerOptions" if own is None else f"workerGroupSpecs[{index}]"
        yield Finding(
            f"{before}.{where}.idleTimeoutSeconds",
            f"The autoscaler removes a worker of group {group.group_name} after {seconds} s without a "
            "running task. A worker also counts as idle between two steps of a job, or with an actor that "
            "requests no resources. Its data in memory is lost, and a new worker must load it again.",
            f"Set idleTimeoutSeconds to {_DEFAULT} or more, longer than the pauses of your jobs.",
        )


RULE = rule(__name__, check, RAY_KINDS)
